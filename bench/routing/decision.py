"""Cost of a decision, of keeping it, and of explaining it, by size of the fleet.

Rounds with and without keeping alternate in random order, each a batch of decisions by the default profile: the match of the
prompt, the table of candidates, the decision, and the booking of the request and of its end. The log is full all the time, so that
every decision kept drops one. Times are CPU time of the thread, garbage collection included. The last two figures are those of
`policy: latency`, with as many requests under way as endpoints, each of which teaches it its times.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
import tracemalloc
from array import array
from collections import deque

from kvatlas.api.rest.explanation import explained
from kvatlas.configs.decisions import DecisionsConfig
from kvatlas.configs.schema import WeightsConfig
from kvatlas.fleet.in_flight import Booking, InFlight
from kvatlas.fleet.table import FleetTable
from kvatlas.indexer.factory import index_core
from kvatlas.indexer.match import RankLayout
from kvatlas.indexer.match_plan import MatchPlan, PlannedRank
from kvatlas.indexer.prefix import Prefix
from kvatlas.routing.decision_log import DecisionLog
from kvatlas.scorers.core.decision import Decision
from kvatlas.scorers.core.max_score import MaxScorePicker
from kvatlas.scorers.core.model import Load, RequestView
from kvatlas.scorers.core.profile import Profile
from kvatlas.scorers.latency.fleet_cost import FleetCostParams, FleetCostScorer
from kvatlas.scorers.weights import default_profile

from ..common.benchmark import Benchmark
from ..common.fleet_sizes import add_fleet_sizes
from ..common.tables import Cell, Table
from ..common.timing import microseconds

TIERS = ("gpu", "cpu", "storage")
BLOCK_SIZE, N_BLOCKS = 16, 1875
KEYS = array("Q", range(N_BLOCKS))
PROMPT = Prefix.from_keys({BLOCK_SIZE: KEYS})
PROFILE = default_profile(WeightsConfig(), tiers=TIERS)
REQUEST = RequestView(model="m", now=1.0, n_tokens=BLOCK_SIZE * N_BLOCKS)


class Fleet:
    """Endpoints as requests see them, with the tables of a real fleet.

    Args:
        n_endpoints: how many; every fourth holds something of the prompt.
    """

    def __init__(self, n_endpoints: int) -> None:
        self._index = index_core().make_index()
        self._table = FleetTable({}, lambda _: ())
        self._in_flight = InFlight(on_change=self._table.set_in_flight)
        ranks: list[PlannedRank] = []
        self._names = [f"vllm-{number}" for number in range(n_endpoints)]
        for number, name in enumerate(self._names):
            self._table.add(name, f"10.0.0.{number}:8000", {})
            ranks.append(PlannedRank(name, 0, BLOCK_SIZE, self._layout(held=not number % 4)))
        self.scraped()
        self._plan = MatchPlan(ranks, tiers=TIERS, index_for=lambda _: self._index)

    def scraped(self) -> None:
        """Take a new load of every endpoint."""
        for name in self._names:
            self._table.set_load(name, Load(random.randrange(9), random.randrange(99), random.random(), 0.9))

    def decide(self) -> Decision:
        """Make one decision of the default profile, and book its request, which ends at once."""
        decision, booking = self.routed(PROFILE)
        booking.ended()
        return decision

    def routed(self, profile: Profile) -> tuple[Decision, Booking]:
        """Make one decision, and book its request."""
        matches = self._plan.columns(PROMPT)
        candidates = self._table.candidates(matches, now=REQUEST.now, stale_after_s=5.0, doubts={})
        decision = profile.decide(REQUEST, candidates, rng=random.random)
        best = decision.best
        return decision, self._in_flight.book(
            best.name, tokens=best.uncached_tokens(REQUEST), now=REQUEST.now
        )

    def _layout(self, *, held: bool) -> RankLayout:
        """Store an endpoint's blocks: the first of the prompt on its GPU, more of them in its CPU memory."""
        holders = [self._index.open(), self._index.open()]
        for holder, n_blocks in zip(holders, sorted(random.choices(range(1, N_BLOCKS), k=2)), strict=True):
            if held:
                self._index.store(holder, KEYS[:n_blocks])
        return RankLayout((*(1 << holder for holder in holders), 0), (1, 1, 1))


def latency(n_endpoints: int, *, rounds: int, batch: int) -> tuple[float, float]:
    """Return the microseconds of a decision by `policy: latency`, and those in which it learns from one request."""
    scorer = FleetCostScorer(FleetCostParams(), TIERS)
    profile = Profile([(scorer.type, scorer, 1.0)], MaxScorePicker())
    fleet, open_ = Fleet(n_endpoints), deque[tuple[Decision, Booking]]()

    def decide() -> None:
        decision, booking = fleet.routed(profile)
        profile.picked(REQUEST, decision)
        open_.append((decision, booking))

    def learn() -> None:
        decision, booking = open_.popleft()
        profile.answered(decision, ttft_s=random.uniform(0.1, 0.5))
        profile.ended(decision, tpot_s=0.02, n_output=200)
        booking.ended()

    for _ in range(n_endpoints):
        decide()
    times = [(microseconds(decide, batch), microseconds(learn, batch)) for _ in range(rounds)]
    deciding, learning = zip(*times, strict=True)
    return statistics.median(deciding), statistics.median(learning)


def memory(n_endpoints: int, n_decisions: int) -> tuple[float, float]:
    """Return the bytes that a kept decision takes, and those that the log counts; no two decisions share a load."""
    log, fleet = DecisionLog(max_count=n_decisions, max_bytes=2**40), Fleet(n_endpoints)
    fleet.decide()
    tracemalloc.start()
    for number in range(n_decisions):
        fleet.scraped()
        log.add(fleet.decide(), request_id=f"{number:036}", at=0.0)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return taken / n_decisions, log.size_bytes / n_decisions


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    add_fleet_sizes(parser)
    parser.add_argument("--rounds", type=int, default=100, help="of each kind (100)")
    parser.add_argument("--batch", type=int, default=50, help="decisions per round (50)")


def measured(n_endpoints: int, *, rounds: int, batch: int) -> tuple[float, ...]:
    """Return the figures of one size of the fleet, in the order of `FIGURES`."""
    limits = DecisionsConfig()
    log = DecisionLog(max_count=limits.max_count, max_bytes=limits.max_mebibytes * 2**20)
    fleet = Fleet(n_endpoints)

    def keep() -> None:
        log.add(fleet.decide(), request_id="00000000-0000-0000-0000-000000000000", at=time.time())

    keep()
    while log.page(limit=1, before=2):  # until the first decision has left
        keep()
    plain: list[float] = []
    kept: list[float] = []
    for _ in range(rounds):
        sides = [(plain, fleet.decide), (kept, keep)]
        random.shuffle(sides)
        for times, step in sides:
            times.append(microseconds(step, batch))
    added = [after - before for before, after in zip(plain, kept, strict=True)]
    newest = log.page(limit=1)[0]
    taken, counted = memory(n_endpoints, 50)
    return (
        statistics.median(kept),
        statistics.median(plain),
        statistics.median(added),
        microseconds(lambda: explained(newest), 20),
        taken / 1024,
        counted / 1024,
        float(len(log)),
        *latency(n_endpoints, rounds=rounds, batch=batch),
    )


FIGURES = (
    ("match, decision, booking and keeping", "us"),
    ("without keeping", "us"),
    ("keeping adds", "us"),
    ("explaining one", "us"),
    ("memory of a kept one", "KiB"),
    ("as the bound counts it", "KiB"),
    ("decisions kept", ""),
    ("policy latency: match, decision, booking and account", "us"),
    ("policy latency: learning from a first token and an end", "us"),
)


def run(options: argparse.Namespace) -> list[Table]:
    """Measure decisions with and without keeping."""
    random.seed(1)
    by_size = [measured(n, rounds=options.rounds, batch=options.batch) for n in options.endpoints]
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (what, unit, *figures)
        for (what, unit), figures in zip(FIGURES, zip(*by_size, strict=True), strict=True)
    )
    title = f"{len(PROFILE.scorers)} scorers, by number of endpoints"
    headings = ("", "unit", *(f"{n:,}" for n in options.endpoints))
    return [Table(name="keeping", title=title, headings=headings, rows=rows)]


BENCHMARK = Benchmark(name="decision", about=__doc__, add_options=add_options, run=run)
