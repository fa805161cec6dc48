"""The cases with several ratios of prefill to decode servers, and the page of their figures. The figures are not tested."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from kvatlas.sim.load_curves.point import KEPT, Kept
from kvatlas.sim.replay.policies import STAGE_POLICIES
from kvatlas.sim.stages.__main__ import OURS
from kvatlas.sim.stages.cases import LIMIT, RATIOS, Measured, cases, measure
from kvatlas.sim.stages.page import page
from support.tree import ROOT, read

COMMITTED = Path("docs") / "stages.md"


def made(values: dict[str, float]) -> list[Measured]:
    """Return figures of all cases, each the same but for the policy."""
    return [
        Measured(each, load, {policy: dict.fromkeys(KEPT, value) for policy, value in values.items()})
        for each in cases(Path("trace.jsonl"))
        for load in each.loads
    ]


def test_cases_have_every_ratio_with_both_workloads() -> None:
    found = cases(Path("trace.jsonl"))

    assert len(found) == 2 * len(RATIOS)
    assert len({each.name for each in found}) == len(found)
    assert {each.name.partition("/")[0] for each in cases(None)} == {"long"}
    for each in found:
        roles = each.fleet.roles
        assert each.name.split("/")[1].startswith(f"{roles.count('prefill')}:{roles.count('decode')}")
    named = {each.name: each.fleet for each in found}
    assert named["long/2:2, 25 Gbit/s"].network.server_bytes_per_s == 25e9 / 8
    assert (named["long/4:4, 2 zones"].network.zone_bytes_per_s, named["long/4:4, 2 zones"].zones) == (
        25e9 / 8,
        2,
    )


def test_generated_prompts_arrive_at_the_load_and_seed() -> None:
    workload = cases(None)[0]

    first, again, other = (workload.make(0.2, seed) for seed in (1, 1, 2))

    assert first == again != other
    assert len(first.requests) == LIMIT
    rate = len(first.requests) / first.requests[-1].at_s
    assert rate == pytest.approx(0.2 * workload.fleet.servers, rel=0.2)


def test_recorded_prompts_arrive_at_the_load(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    line = '{{"timestamp": {}, "input_length": 600, "output_length": 10, "hash_ids": [{}, {}]}}\n'
    file.write_text("".join(line.format(3000 * (number // 4), number, number + 1) for number in range(400)))
    workload = cases(file)[0]

    trace = workload.make(0.5, 1)

    assert len(trace.requests) / trace.requests[-1].at_s == pytest.approx(
        0.5 * workload.fleet.servers, rel=0.05
    )


def test_known_points_are_not_replayed_again(tmp_path: Path) -> None:
    workload = replace(cases(None, limit=6)[0], loads=(0.2,), warm_up=2)
    file, n_replays = tmp_path / "kept.jsonl", list[int]()

    first = measure(
        [workload], ["threshold", OURS], Kept(file), seeds=2, progress=lambda: n_replays.append(1)
    )
    again = measure(
        [workload], ["threshold", OURS], Kept(file), seeds=2, progress=lambda: n_replays.append(1)
    )

    assert again == first
    assert len(n_replays) == 4
    assert all(each["requests"] == 4 for each in first[0].figures.values())


def test_page_compares_ours_with_the_best_other_in_each_row() -> None:
    values = {"reference": 4.0, "threshold": 2.0, "always": 1.0, "never": 8.0, OURS: 1.02}

    text = page(made(values), ours=OURS, seeds=2, limit=50)

    assert "| conversation | 1:3 | 0.12 | +2 % | +2 % | -74 % | -49 % | +2 % | -87 % |" in text
    assert "In 28 of 28 rows `joint` is at most 2 % above" in text
    assert "| 2:2, 25 Gbit/s | 0.08 | 4.00 / 4.0 |" in text
    assert "at most 50 requests per figure, the first 200 of them not counted" in text
    assert "$" not in text


def test_committed_page_is_of_this_template_and_these_cases() -> None:
    if not (ROOT / COMMITTED).exists():
        pytest.skip("make stages writes the page")
    values = dict.fromkeys((*STAGE_POLICIES, OURS), 1.0)

    def words(text: str) -> list[str]:
        """Leave out figures, and how many replays they are of."""
        without = re.sub(r"^Written by.*$|^In \d+ of.*$", "", text, flags=re.MULTILINE)
        return [re.sub(r"[-+]?\d[\d.]*( %)?", "N", line) for line in without.splitlines()]

    assert words(read(COMMITTED)) == words(page(made(values), ours=OURS, seeds=1, limit=LIMIT))
