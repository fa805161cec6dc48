"""The published ladders on simulated servers, and their page. The figures are not tested."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from kvatlas.sim.published.ladders.cases import GUIDE, Results, Run, guide_policy
from kvatlas.sim.published.ladders.page import page
from kvatlas.sim.published.ladders.published import LADDERS, OPTIMIZED_LADDER, TIERED_LADDER, Arm, Ladder
from kvatlas.sim.traces.shared_prefix import SharedPrefixSpec, Stage
from support.tree import ROOT, read

SMALL = Ladder(
    name="small",
    spec=SharedPrefixSpec(
        num_groups=3, num_prompts_per_group=4, system_prompt_len=2048, question_len=512, output_len=4
    ),
    warm_up=(Stage(4.0, 3.0),),
    stages=(Stage(1.0, 5.0), Stage(2.0, 5.0)),
    figures=("ttftMean",),
    arms=(Arm("GPU and CPU", "tiered", has_cpu=True, published={1.0: (1.0,), 2.0: (1.0,)}),),
)


def made(value: float) -> Results:
    class Everything(dict[str, float]):
        def __missing__(self, _name: str) -> float:
            return value

    stages: Mapping[str, Mapping[float, Mapping[str, float]]] = {
        ladder.name: {stage.rate: Everything() for stage in ladder.stages} for ladder in LADDERS
    }
    return {
        (ladder.name, arm.name, policy): stages[ladder.name]
        for ladder in LADDERS
        for arm in ladder.arms
        for policy in (GUIDE, "latency")
    }


def test_run_counts_the_requests_of_each_published_stage_with_warm_caches() -> None:
    found = Run(SMALL, SMALL.arms[0], GUIDE, 1, 32).figures()

    assert {rate: figures["requests"] for rate, figures in found.items()} == {1.0: 5.0, 2.0: 10.0}
    assert all(figures["hitRate"] > 0.8 and figures["ttftMean"] > 0 for figures in found.values())


def test_guides_have_the_weights_of_their_files() -> None:
    weights = {
        name: [entry.weight for entry in config.scheduling_profiles[0].plugins]
        for name in ("tiered", "optimized-baseline")
        if (config := guide_policy(name).config) is not None
    }

    assert weights == {"tiered": [1, 1, 1, 1, 1], "optimized-baseline": [2, 2, 3, 2]}
    assert guide_policy("affinity").config is None


def test_published_figures_are_complete() -> None:
    for ladder in LADDERS:
        for arm in ladder.arms:
            assert list(arm.published) == [stage.rate for stage in ladder.stages]
            assert all(len(figures) == len(ladder.figures) for figures in arm.published.values())
    assert sum(stage.n_requests for stage in TIERED_LADDER.stages) == 4500
    assert OPTIMIZED_LADDER.warm_up[0].n_requests == 750


def test_page_has_published_figures_beside_simulated_ones() -> None:
    text = page(made(2.0), ["latency"], seeds=3, granularity=4)

    assert "| 10 | 8.08 | 2.00 | 2.00 | 0.41 | 2.00 | 2.00 |" in text
    assert "| 3 | - | 2.00 | 2.00 | - | 2.00 | 2.00 |" in text
    assert "3 seed(s) a case, 4 blocks simulated as one" in text
    assert "$" not in text


def test_committed_page_is_of_this_template_and_these_published_figures() -> None:
    file = Path("docs") / "benchmark-ladders.md"
    if not (ROOT / file).exists():
        pytest.skip("make ladders writes the page")
    committed = read(file)

    def words(text: str) -> str:
        return re.sub(r"^Written by.*$|^\|.*$", "", text, flags=re.MULTILINE)

    assert words(committed) == words(page(made(0.0), ["latency"], seeds=1, granularity=1))
