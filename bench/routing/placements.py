"""Cost of choosing the servers that prefill and decode together, by size of the fleet.

Half of the servers compute prompts, half answer. Figures: the whole decision with the match of the prompt, the table and the
booking; the same while the cost model follows each request from its pick to its end; and one on a single server, for which roles do not count.
Times are CPU time of the thread.
"""

from __future__ import annotations

import argparse
import random
import statistics

from kvatlas.configs.disaggregation import DisaggregationConfig
from kvatlas.configs.policies import expanded
from kvatlas.configs.schema import KVAtlasConfig, TierConfig
from kvatlas.routing.plan.plan import make_plan
from kvatlas.scorers.core.decision import Decision
from kvatlas.scorers.core.scheduler import Deciding
from kvatlas.scorers.filters.roles import ROLE_LABEL

from ..common.benchmark import Benchmark
from ..common.tables import Cell, Table
from ..common.timing import microseconds
from .decision import PROMPT, REQUEST, TIERS
from .decision import Fleet as PlainFleet

ROLES = ("prefill", "decode")


class Fleet(PlainFleet):
    """Endpoints as requests see them, half of which compute prompts for the others.

    Args:
        n_each: how many of each role.
    """

    def __init__(self, n_each: int) -> None:
        super().__init__(2 * n_each)
        for number, name in enumerate(self._names):
            self._table.relabel(name, {ROLE_LABEL: ROLES[number % 2]})

    def place(self, profile: Deciding) -> Decision:
        """Make one decision, and book its request, which ends at once."""
        matches = self._plan.columns(PROMPT)
        candidates = self._table.candidates(matches, now=REQUEST.now, stale_after_s=5.0, doubts={})
        decision = profile.decide(REQUEST, candidates, rng=random.random)
        best = decision.best
        self._in_flight.book(best.name, tokens=best.uncached_tokens(REQUEST), now=REQUEST.now).ended()
        return decision


def profile(*, apart: bool) -> Deciding:
    """Return what decides with `policy: latency`, with or without roles."""
    config = KVAtlasConfig(
        api_version="kvatlas/v1",
        tiers=tuple(TierConfig(name=name) for name in TIERS),
        policy="latency",
        disaggregation=DisaggregationConfig(uncached_tokens=1 if apart else 0),
    )
    return make_plan(expanded(config)).profile


def measured(n_each: int, *, rounds: int, batch: int) -> tuple[float, ...]:
    """Return the medians of the figures for so many servers of each role, in microseconds."""
    joint, single, fleet = profile(apart=True), profile(apart=False), Fleet(n_each)

    def follow() -> None:
        decision = fleet.place(joint).lasting()
        joint.picked(REQUEST, decision)
        joint.answered(decision, ttft_s=1.0)
        joint.ended(decision, tpot_s=0.02)

    steps = (lambda: fleet.place(joint), follow, lambda: fleet.place(single))
    times: list[list[float]] = [[] for _ in steps]
    for _ in range(rounds):
        for found, step in random.sample(list(zip(times, steps, strict=True)), len(steps)):
            found.append(microseconds(step, batch))
    return tuple(map(statistics.median, times))


FIGURES = ("decision on both servers", "the same, and learning from its request", "without roles")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--servers", type=int, nargs="+", default=[4, 16, 64], help="of each role (4 16 64)")
    parser.add_argument("--rounds", type=int, default=50, help="of each kind (50)")
    parser.add_argument("--batch", type=int, default=50, help="decisions per round (50)")


def run(options: argparse.Namespace) -> list[Table]:
    """Measure decisions on fleets of several sizes."""
    random.seed(1)
    by_size = [measured(n, rounds=options.rounds, batch=options.batch) for n in options.servers]
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (what, "us", *figures) for what, figures in zip(FIGURES, zip(*by_size, strict=True), strict=True)
    )
    headings = ("", "unit", *(f"{n} + {n}" for n in options.servers))
    return [
        Table(
            name="placements", title="policy latency, by servers of each role", headings=headings, rows=rows
        )
    ]


BENCHMARK = Benchmark(name="placements", about=__doc__, add_options=add_options, run=run)
