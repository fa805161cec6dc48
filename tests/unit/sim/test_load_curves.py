"""The search for sustained loads, the kept points, and the page of curves. The figures are not tested."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import fmean, geometric_mean

import msgspec
import pytest

from kvatlas.sim.errors import ReplayError, SimError
from kvatlas.sim.load_curves.curves import Curves, Settings, curves
from kvatlas.sim.load_curves.page import page, plot
from kvatlas.sim.load_curves.point import Kept, Point, figures_at
from kvatlas.sim.load_curves.sustained import LIMIT_S, MAX_DOUBLINGS, PRECISION, sustained_load
from kvatlas.sim.traces.agents import AgentsSpec, agents_trace
from kvatlas.sim.traces.trace import Trace
from kvatlas.sim.workloads import GENERATED, Workload, select
from support.traces import BLOCK, make_fleet

SPEC = AgentsSpec(
    turns=2, tool_sets=2, system_len=16, turn_len=6, output_len=3, think_s=1.0, block_size=BLOCK
)


def made(load: float, seed: int) -> Trace:
    return agents_trace(msgspec.structs.replace(SPEC, agents=6, starts_per_s=load), seed=seed)


WORKLOAD = Workload(
    name="made/small", unit="agents/s", loads=(1.0,), fleet=make_fleet(), make=made, granularity=1, warm_up=1
)
SETTINGS = Settings(
    ("round-robin", "affinity"),
    ours="affinity",
    fractions=(0.5, 1.0),
    pair=("precise", "approximate"),
    pair_seeds=2,
)


def gains(found: Curves) -> list[str]:
    """Return the changes that exact contents bring at each load, and their geometric mean."""
    ratios = [
        exact["ttftMean"] / guess["ttftMean"]
        for exact, guess in zip(found.pair["precise"], found.pair["approximate"], strict=True)
    ]
    return [f"{100 * (ratio - 1):+.0f} %" for ratio in (*ratios, geometric_mean(ratios))]


@pytest.mark.parametrize("passes_at", [0.3, 1.0, 1.7, 30.0])
def test_sustained_load_is_just_below_the_one_that_passes_the_limit(passes_at: float) -> None:
    found = sustained_load(lambda load: LIMIT_S * load / passes_at, 1.0)

    assert passes_at / PRECISION <= found <= passes_at


@pytest.mark.parametrize(
    ("wait_s", "found"), [(9.0, 0.0), (0.1, 2.0**MAX_DOUBLINGS)], ids=["never", "always"]
)
def test_search_ends_if_no_load_passes_the_limit(wait_s: float, found: float) -> None:
    assert sustained_load(lambda _load: wait_s, 1.0) == found


def test_curves_go_on_where_they_were_and_fill_the_page(tmp_path: Path) -> None:
    file, lines = tmp_path / "kept.jsonl", list[str]()

    first = curves([WORKLOAD], SETTINGS, Kept(file), progress=lines.append)
    written = file.read_bytes()
    again = curves([WORKLOAD], SETTINGS, Kept(file), progress=lines.append)
    text = page(first, SETTINGS, left_out=["other/gpu"])
    image = plot(first[0], SETTINGS.policies, tmp_path)

    assert again == first
    assert file.read_bytes() == written
    assert lines[0].startswith("made/small: round-robin sustains ")
    (found,) = first
    assert found.loads == sorted(found.loads)
    assert list(found.figures) == ["round-robin", "affinity", "bound"]
    assert {policy: len(figures) for policy, figures in found.pair.items()} == {
        "precise": 2,
        "approximate": 2,
    }
    for least, *others in zip(
        found.figures["bound"], *(found.figures[each] for each in SETTINGS.policies), strict=True
    ):
        assert all(each["ttftMean"] >= least["ttftMean"] * 0.999 for each in others)
    assert "$" not in text
    assert "Not run: other/gpu." in text
    assert text.count("| bound |") == 3
    assert "## Exact and approximate contents" in text
    assert f"| made/small | {' | '.join(gains(found))} |" in text
    assert "## Exact" not in page(first, replace(SETTINGS, pair=()))
    assert f"](images/{image.name})" in text
    assert "<!-- affinity -->" in image.read_text()


@pytest.mark.parametrize(
    ("ours", "n_traces"),
    [pytest.param("round-robin", 3, id="worse"), pytest.param("affinity", 1, id="clearly_better")],
)
def test_more_traces_decide_where_ours_is_not_clearly_better(
    tmp_path: Path, ours: str, n_traces: int
) -> None:
    settings = replace(SETTINGS, ours=ours, pair=(), close_seeds=3, fractions=(1.0,))
    kept = Kept(tmp_path / "kept.jsonl")

    (found,) = curves([WORKLOAD], settings, kept)

    for policy in ("round-robin", "affinity"):
        points = [kept.get(Point(WORKLOAD.name, policy, found.loads[0], seed)) for seed in (1, 2, 3)]
        known = [each["ttftMean"] for each in points if each is not None]
        assert len(known) == n_traces
        assert found.figures[policy][0]["ttftMean"] == pytest.approx(fmean(known))
    assert "means of 3 seeds" in page([found], settings)


def test_point_gives_the_same_figures_again() -> None:
    point = Point(WORKLOAD.name, "precise", 2.0, 1)

    assert figures_at(WORKLOAD, point) == figures_at(WORKLOAD, point)


def test_file_with_other_content_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "kept.jsonl"
    file.write_text("{}\n")

    with pytest.raises(ReplayError, match=r"kept\.jsonl: .*delete it"):
        Kept(file)


def test_workloads_are_selected_by_name_and_family() -> None:
    assert select(GENERATED, ()) == GENERATED
    assert [each.name for each in select(GENERATED, ("chats", "tiered/cpu"))] == [
        "chats/gpu",
        "chats/cpu",
        "tiered/cpu",
    ]
    with pytest.raises(SimError, match="found workload 'chat', want one of agents/gpu, "):
        select(GENERATED, ("chat",))


@pytest.mark.parametrize("workload", GENERATED, ids=lambda each: each.name)
def test_workload_fits_its_fleet(workload: Workload) -> None:
    load = workload.loads[0]
    trace = workload.make(load, 1)
    size = workload.fleet.block_size * workload.granularity

    assert trace.block_size % size == 0 or size % trace.block_size == 0
    assert len(trace.requests) > workload.warm_up + 100
    assert (
        max(each.n_tokens for each in trace.requests) < workload.fleet.gpu_blocks * workload.fleet.block_size
    )
    assert sorted(workload.loads) == list(workload.loads)
