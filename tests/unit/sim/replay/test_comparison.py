from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import fmean

import msgspec
import pytest
from rich.console import Console
from typer.testing import CliRunner

from kvatlas.app.cli.main import app
from kvatlas.sim.replay.comparison import Case, Outcome, Plan, compare
from kvatlas.sim.replay.figures import Estimate, estimate, figures, percentile
from kvatlas.sim.replay.plots import write_plots
from kvatlas.sim.replay.policies import Policy
from kvatlas.sim.replay.report import tables, to_json
from kvatlas.sim.replay.simulation import Replayed, Served, Timing
from support.traces import make_fleet, random_trace

TRACE = "agents:agents=4,turns=3,system_len=256,turn_len=80,output_len=20"
CASES = [
    Case(Policy(name), make_fleet(cpu_blocks=cpu_blocks), float(cpu_blocks))
    for cpu_blocks in (0, 40)
    for name in ("round-robin", "precise")
]


def make_plan(n_seeds: int = 2) -> Plan:
    return Plan(tuple(random_trace(seed, n_requests=25) for seed in range(n_seeds)), Timing(jitter_s=0.5))


def test_comparison_has_every_case_with_every_seed() -> None:
    progress: list[None] = []

    outcomes = compare(make_plan(), CASES, progress=lambda: progress.append(None))

    assert len(progress) == 8
    assert [(each.policy, each.cpu_gib) for each in outcomes] == [(c.policy.name, c.cpu_gib) for c in CASES]
    assert all(each.figures["requests"] == Estimate(25.0, 0.0) for each in outcomes)
    assert outcomes == compare(make_plan(), CASES)


@pytest.mark.parametrize(
    ("values", "mean", "margin"),
    [
        pytest.param([3.0], 3.0, None, id="one_seed_says_nothing_of_chance"),
        pytest.param([1.0, 3.0], 2.0, 12.706, id="two"),
        pytest.param([1.0, 2.0, 3.0], 2.0, 4.303 / 3**0.5, id="three"),
        pytest.param([5.0] * 30, 5.0, 0.0, id="many_equal"),
    ],
)
def test_estimate_has_the_margin_of_students_distribution(
    values: list[float], mean: float, margin: float | None
) -> None:
    found = estimate(values)

    assert found.mean == mean
    assert found.margin == (None if margin is None else pytest.approx(margin))


def test_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = Random(1)
    covered = 0
    for _ in range(400):
        found = estimate([rng.gauss(10.0, 2.0) for _ in range(5)])
        covered += abs(found.mean - 10.0) <= (found.margin or 0.0)
    assert 0.92 < covered / 400 < 0.98


@pytest.mark.parametrize(("part", "value"), [(0.5, 50), (0.9, 90), (0.99, 99), (1.0, 100), (0.001, 1)])
def test_percentile_is_a_value_that_so_many_do_not_exceed(part: float, value: int) -> None:
    assert percentile(range(1, 101), part) == value
    assert percentile([], part) == 0.0


def test_shownare_of_what_was_served() -> None:
    served = [
        Served(
            0, "a", 0.0, 1.0, 3.0, n_prompt=100, n_output=10, gpu_tokens=40, cpu_tokens=20, storage_tokens=10
        ),
        Served(1, "b", 1.0, 4.0, 5.0, n_prompt=100, n_output=10),
    ]

    found = figures(Replayed(served, [], refused=2), ("a", "b"))

    rates = {name: found[name] for name in ("hitRate", "gpuHitRate", "cpuHitRate", "storageHitRate")}
    assert rates == pytest.approx(
        {"hitRate": 0.35, "gpuHitRate": 0.2, "cpuHitRate": 0.1, "storageHitRate": 0.05}
    )
    assert (found["ttftMean"], found["ttftP50"], found["ttftP99"], found["e2eMean"]) == (2.0, 1.0, 3.0, 3.5)
    assert (found["outputTokensPerSecond"], found["tokensPerSecond"]) == (4.0, 44.0)
    assert found["busiestServer"] == 110 / fmean([40, 110])
    assert (found["refused"], found["requests"]) == (2.0, 2.0)


def test_shownof_nothing_are_zero() -> None:
    found = figures(Replayed(), ("a",))

    assert (found.pop("busiestServer"), set(found.values())) == (1.0, {0.0})


def test_tables_and_json_tell_the_figures() -> None:
    outcomes = compare(make_plan(), CASES)
    written = io.StringIO()
    console = Console(file=written, width=120)
    for table in tables(outcomes):
        console.print(table)
    text = written.getvalue()

    first = outcomes[0].figures["ttftMean"]
    assert f"{first.mean:.2f} ±{first.margin:.2f}" in text
    assert "storage" not in text
    assert len(re.findall(r"^ *precise ", text, re.MULTILINE)) == 4
    assert msgspec.json.decode(to_json(outcomes), type=list[Outcome]) == outcomes


def test_plots_show_every_policy_and_are_the_same_again(tmp_path: Path) -> None:
    outcomes = compare(make_plan(1), CASES)

    files = write_plots(outcomes, tmp_path / "new", title="made")

    assert [file.name for file in files] == [
        "2-servers-0-gib.svg",
        "2-servers-40-gib.svg",
        "2-servers-cpu-sizes.svg",
    ]
    for file in files:
        assert all(f"<!-- {policy} -->" in file.read_text() for policy in ("round-robin", "precise"))
    again = write_plots(outcomes, tmp_path / "again", title="made")
    assert [file.read_bytes() for file in files] == [file.read_bytes() for file in again]


def run(*arguments: str, columns: str = "120") -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["replay", *arguments], env={"COLUMNS": columns})
    return result.exit_code, result.stdout, result.stderr


def test_command_compares_files_and_policies(tmp_path: Path) -> None:
    file = tmp_path / "heavy.yaml"
    file.write_text("apiVersion: kvatlas/v1\nkind: KVAtlasConfig\nweights: {gpuPrefixCache: 5}\n")

    status, text, _ = run(
        TRACE,
        "--config",
        str(file),
        "--policy",
        "random",
        "--endpoints",
        "1,2",
        "--cpu-gb",
        "1",
        "--plots",
        str(tmp_path),
    )

    assert status == 0
    assert text.startswith("agents-4x3: 12 requests, ")
    assert [line.split()[:3] for line in text.splitlines() if line.strip().startswith(("heavy", "random"))][:4] == [
        ["heavy", "1", "1"], ["random", "1", "1"], ["heavy", "2", "1"], ["random", "2", "1"],
    ]  # fmt: skip
    assert (tmp_path / "2-servers-1-gib.svg").exists()


@pytest.mark.parametrize("columns", ["40", "80"])
def test_long_name_of_a_file_takes_no_room_from_the_figures(tmp_path: Path, columns: str) -> None:
    file = tmp_path / f"a-configuration-with-{'a-very-' * 10}long-name.yaml"
    file.write_text("apiVersion: kvatlas/v1\nkind: KVAtlasConfig\nweights: {gpuPrefixCache: 5}\n")
    arguments = (TRACE, "--config", str(file), "--cpu-gb", "1", "--curve", "0,1")

    status, text, _ = run(*arguments, columns=columns)

    found = json.loads(run(*arguments, "--json")[1])[0]["figures"]
    shown = [f"{found[name]['mean']:.2f}" for name in ("ttftMean", "ttftP50", "ttftP99", "timesBound")]
    shown += [f"{found['hitRate']['mean']:.1%}", f"{found['outputTokensPerSecond']['mean']:.0f}"]
    shown += [f"{found['hitRateAt0GiB']['mean']:.1%}"]
    assert (status, [each for each in shown if each not in text.split()]) == (0, [])
    assert "…" not in text


def test_command_shows_the_curve_of_cpu_sizes() -> None:
    status, text, _ = run(
        TRACE, "--policy", "precise", "--cpu-gb", "1", "--endpoints", "2", "--curve", "4,0,2"
    )

    rows = re.findall(r"^ +(\d) +([\d.]+%) *(\+[\d.]+)? *$", text, re.MULTILINE)
    assert (status, [size for size, _rate, _gain in rows]) == (0, ["0", "2", "4"])
    assert [bool(gain) for _size, _rate, gain in rows] == [True, True, False]


def test_warm_up_is_not_counted() -> None:
    plan = replace(make_plan(), warm_up=10)

    (outcome,) = compare(plan, CASES[:1])

    assert outcome.figures["requests"] == Estimate(15.0, 0.0)


def test_command_prints_json_alone() -> None:
    status, text, _ = run(
        TRACE, "--policy", "precise", "--cpu-gb", "0", "--endpoints", "2", "--json", "--seeds", "2"
    )

    outcome, bound = json.loads(text)
    assert (status, outcome["policy"], outcome["endpoints"], outcome["cpuGib"]) == (0, "precise", 2, 0.0)
    assert outcome["figures"]["requests"] == {"mean": 12.0, "margin": 0.0}
    assert (bound["policy"], bound["endpoints"], bound["cpuGib"]) == ("bound", 2, 0.0)
    least = bound["figures"]["ttftMean"]["mean"]
    assert outcome["figures"]["timesBound"]["mean"] == outcome["figures"]["ttftMean"]["mean"] / least > 0.999


def test_command_shows_the_bound_of_each_fleet() -> None:
    status, text, _ = run(
        TRACE, "--policy", "random", "--policy", "precise", "--endpoints", "1,2", "--cpu-gb", "1"
    )

    first = text.partition("seconds to the last token")[0]
    rows = [line.split()[:3] for line in first.splitlines() if re.match(r" +(random|precise|bound) ", line)]
    assert (status, [row[0] for row in rows]) == (0, ["random", "precise", "bound"] * 2)
    assert [row[1] for row in rows] == ["1"] * 3 + ["2"] * 3


def test_command_gives_the_same_with_one_process_and_with_two() -> None:
    arguments = (TRACE, "--policy", "precise", "--cpu-gb", "1", "--seeds", "2", "--json")
    command = [sys.executable, "-m", "kvatlas.app.cli.main", "replay", *arguments, "--jobs", "2"]

    two = subprocess.run(
        command, check=True, capture_output=True, text=True
    ).stdout  # its child processes end with it

    assert run(*arguments)[:2] == (0, two)


def test_request_that_no_engine_can_hold_is_refused(tmp_path: Path) -> None:
    trace = tmp_path / "long.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 1000, "output_length": 200000, "hash_ids": [0, 1]}\n')

    status, text, _ = run(str(trace), "--policy", "precise", "--cpu-gb", "0", "--json")
    shown = run(str(trace), "--policy", "precise", "--cpu-gb", "0")[1]

    outcome, _bound = json.loads(text)
    assert status == 0
    assert (outcome["figures"]["refused"]["mean"], outcome["figures"]["requests"]["mean"]) == (1.0, 0.0)
    assert "timesBound" not in outcome["figures"]
    assert re.search(r"refused *\n[\s─]+precise .* 1 *\n", shown)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(
            (TRACE, "--warm-up", "12"),
            "--warm-up: found 12, want at most 11, so that one of the 12 requests of agents-4x3 is counted",
            id="all_warm_up",
        ),
        pytest.param((TRACE, "--plots", "/proc/x"), "--plots: /proc/x cannot be written: ", id="no_folder"),
        pytest.param(("nothing.jsonl",), "nothing.jsonl: No such file", id="no_trace"),
        pytest.param((TRACE, "--policy", "best"), "found policy 'best'", id="no_policy"),
        pytest.param((TRACE, "--config", "none.yaml"), "none.yaml: no such file", id="no_config"),
        pytest.param((TRACE, "--cpu-gb", "x"), "found 'x', want numbers from 0 to 1000000", id="no_number"),
        pytest.param((TRACE, "--endpoints", "0"), "found '0', want numbers from 1 to 1024", id="no_servers"),
        pytest.param(
            (TRACE, "--granularity", "3"), "3 simulated as one, do not fit block ids of 64", id="no_fit"
        ),
    ],
)
def test_wrong_use_ends_with_status_2_and_says_what_was_wrong(
    arguments: tuple[str, ...], message: str
) -> None:
    status, out, text = run(*arguments)

    assert (status, out) == (2, "")
    assert message in re.sub(r"[\s│]+", " ", text)
