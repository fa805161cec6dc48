"""Shares of requests that meet their objectives, by policy, on servers of two speeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from string import Template

import msgspec

from ..replay.comparison import Case, Outcome, Plan, compare
from ..replay.policies import named_policy
from ..replay.simulation import Timing
from ..traces.objectives import MIXED, Objectives, with_objectives
from ..workloads import AGENTS, TWO_SPEEDS, agents

GRANULARITY = 8
"""Blocks that are simulated as one."""

SECONDS = 240.0
"""Simulated time in which agents start."""

WARM_UP = 200
"""First requests of a replay that are not counted: caches fill, and costs are learned."""

BASELINE = "precise"
POLICIES = (BASELINE, "latency", "slo")

_TEMPLATE = Path(__file__).with_name("page.template")
_NAMES = {BASELINE: "2:2:1:1"}


class Attained(msgspec.Struct, frozen=True):
    """The figures of each policy at one load.

    Attributes:
        load: agents that start per second.
        outcomes: one per policy.
    """

    load: float
    outcomes: Sequence[Outcome]


def attained(
    loads: Sequence[float],
    *,
    seeds: int,
    policies: Sequence[str] = POLICIES,
    seconds: float = SECONDS,
    jobs: int = 1,
    progress: Callable[[], None] = lambda: None,
) -> list[Attained]:
    """Replay each policy at each load with each seed. Every seed has its own agents and objectives."""
    cases = [Case(named_policy(name), TWO_SPEEDS, 0.0) for name in policies]
    found: list[Attained] = []
    for load in loads:
        traces = tuple(
            with_objectives(agents(AGENTS, seconds, load, seed), seed=seed) for seed in range(1, seeds + 1)
        )
        plan = Plan(traces, Timing(), GRANULARITY, warm_up=WARM_UP)
        found.append(Attained(load, compare(plan, cases, jobs=jobs, progress=progress)))
    return found


def table(found: Iterable[Attained], *, sustained: float) -> str:
    """Return the shares as a table in Markdown."""
    heads = ["load", "policy", "objectives met", "mean TTFT, s", "p99, s", "found in caches"]
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for each in found:
        for outcome in each.outcomes:
            met, mean, p99, hits = (
                outcome.figures[name].mean for name in ("sloMet", "ttftMean", "ttftP99", "hitRate")
            )
            cells = (
                f"{each.load:g} ({each.load / sustained:.0%})",
                _NAMES.get(outcome.policy, f"`{outcome.policy}`"),
                f"{met:.1%}",
                f"{mean:.2f}",
                f"{p99:.1f}",
                f"{hits:.1%}",
            )
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def page(found: Sequence[Attained], *, sustained: float, seeds: int) -> str:
    """Return the whole page."""
    return Template(_TEMPLATE.read_text()).substitute(
        granularity=GRANULARITY,
        seeds=seeds,
        sustained=f"{sustained:g}",
        kinds="\n".join(_kind(each) for each in MIXED),
        table=table(found, sustained=sustained),
    )


def _kind(kind: Objectives) -> str:
    limits = [
        f"{what} {ms:g} ms"
        for what, ms in (("first token within", kind.ttft_ms), ("each further token within", kind.tpot_ms))
        if ms is not None
    ]
    return f"| {kind.share:.0%} | {', '.join(limits) or 'none'} |"
