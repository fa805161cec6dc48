"""Figures of runs, and how they are shown."""

from __future__ import annotations

import io
import json
import re
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from kvatlas.sim.compare.figures import Row, RunFigures, figures_of, quantile
from kvatlas.sim.compare.load import ChatLoad, Played, chats
from kvatlas.sim.compare.plot import write_plot
from kvatlas.sim.compare.report import print_report, to_json
from kvatlas.sim.errors import OutputError
from kvatlas.sim.workload import Turn

LOAD = ChatLoad(rate=5.0, seconds=20.0, groups=3, system_words=8, user_words=4)


def turn(ttft_s: float, server: str = "a", cached: int = 50) -> Turn:
    return Turn(server, ttft_s, 2 * ttft_s, prompt_tokens=100, cached_tokens=cached)


def run(mean: float, *, failed: int = 0, without_picker: int = 0, lag: float = 0.0) -> RunFigures:
    return RunFigures(
        requests=10, failed=failed, without_picker=without_picker, ttft_mean=mean, ttft_p50=mean,
        ttft_p90=2 * mean, ttft_p99=4 * mean, cached=0.875, busiest=0.25, lag_p99=lag,
    )  # fmt: skip


ROWS = [
    Row(policy="weights", rate=2.0, runs=(run(1.0), run(2.0))),
    Row(policy="latency", rate=2.0, runs=(run(0.5), run(0.5, failed=3))),
]


def shown(rows: list[Row], *, time_scale: float = 1.0, width: int = 100) -> str:
    out = io.StringIO()
    print_report(Console(file=out, width=width), rows, time_scale=time_scale)
    return out.getvalue()


def test_equal_loads_give_equal_chats() -> None:
    one, other = ([(chat.at_s, chat.messages, chat.rng.random()) for chat in chats(LOAD)] for _ in range(2))

    assert one == other
    assert 60 < len(one) < 140
    assert all(before[0] < after[0] < 20 for before, after in pairwise(one))
    assert len({chat[1][0]["content"] for chat in one}) == 3


def test_another_seed_gives_other_chats() -> None:
    other = ChatLoad(rate=5.0, seconds=20.0, groups=3, system_words=8, user_words=4, seed=2)

    assert next(chats(LOAD)).messages != next(chats(other)).messages


def test_figures_are_in_simulated_seconds() -> None:
    played = Played([turn(0.5), turn(1.0, "b"), turn(1.5, cached=0)], ["x"], [0.001] * 98 + [0.2, 0.3])

    found = figures_of(played, time_scale=0.5, without_picker=2)

    assert (found.ttft_mean, found.ttft_p50, found.ttft_p99) == (2.0, 2.0, 3.0)
    assert (found.requests, found.failed, found.without_picker) == (3, 1, 2)
    assert found.cached == pytest.approx(1 / 3)
    assert found.busiest == pytest.approx(2 / 3)
    assert found.lag_p99 == 0.2


def test_run_without_a_response_has_figures() -> None:
    found = figures_of(Played(errors=["x"]), time_scale=1.0, without_picker=0)

    assert (found.requests, found.failed, found.ttft_mean, found.busiest) == (0, 1, 0.0, 0.0)


@pytest.mark.parametrize(
    ("share", "value"), [pytest.param(0.5, 2, id="half"), pytest.param(0.51, 3, id="above"), pytest.param(1, 4, id="all")]
)  # fmt: skip
def test_quantile_is_one_of_the_values(share: float, value: float) -> None:
    assert quantile([1, 2, 3, 4], share) == value


def test_table_has_means_and_ranges_of_repeats() -> None:
    text = shown(ROWS)

    assert "2 chats a second" in text
    assert "1.50 (1.00-2.00)" in text
    assert "87.5%" in text
    assert "0.50, p99 2.00 s" in text
    assert "scaled" not in text
    assert "too busy" not in text


def test_bars_fit_a_narrow_terminal() -> None:
    lines = shown(ROWS, width=80).splitlines()

    bars = [line for line in lines if "█" in line]
    assert len(bars) == 2
    assert all(len(line) <= 80 for line in bars)


def test_long_name_takes_no_room_from_the_figures() -> None:
    name = "a-configuration-with-a-name-that-is-much-too-long-for-a-terminal-of-that-width"
    rows = [msgspec.structs.replace(row, policy=f"{name}{number}") for number, row in enumerate(ROWS)]

    text = shown(rows, width=80)

    assert "(1.00-2.00)" in text
    assert "87.5%" in text
    (one, other) = (line for line in text.splitlines() if "█" in line)
    assert len(one) <= 80
    assert re.fullmatch(r"a-configuration-[a-z-]+…[a-z-]+0 █+░+ 1\.50, p99 6\.00 s", one)
    assert re.fullmatch(r"a-configuration-[a-z-]+…[a-z-]+1 +█+░* 0\.50, p99 2\.00 s", other)


def test_what_weakens_the_figures_is_said() -> None:
    rows = [Row(policy="theirs", rate=2.0, runs=(run(1.0, lag=0.1, without_picker=7),))]

    text = " ".join(shown(rows, time_scale=2.0).split())

    assert "a simulated second took 2 real ones" in text
    assert "the simulated servers were late (p99, worst run): theirs by 100 ms." in text
    assert "theirs: 7 requests went round robin" in text


def test_json_has_every_run() -> None:
    found = json.loads(to_json(ROWS, settings={"servers": 6}, time_scale=1.0))

    assert found["settings"] == {"servers": 6}
    assert [run["ttftMean"] for run in found["rows"][0]["runs"]] == [1.0, 2.0]
    assert found["rows"][0]["mean"]["ttftMean"] == 1.5
    assert found["remarks"] == []


@pytest.mark.parametrize("rates", [pytest.param((2.0,), id="bars"), pytest.param((2.0, 3.0), id="curves")])
def test_picture_names_every_policy(tmp_path: Path, rates: tuple[float, ...]) -> None:
    rows = [Row(policy=row.policy, rate=rate, runs=row.runs) for rate in rates for row in ROWS]
    for name in ("one.svg", "two.svg"):
        write_plot(tmp_path / name, rows, title="six servers")

    one, two = ((tmp_path / name).read_text() for name in ("one.svg", "two.svg"))
    assert one == two
    assert all(f"<!-- {row.policy} -->" in one for row in ROWS)


def test_picture_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"--plot: .* cannot be written: No such file"):
        write_plot(tmp_path / "none" / "x.svg", ROWS, title="")
