"""Cost of keeping a decision so that it can be explained: time, memory, and time to explain.

Rounds with and without keeping alternate in random order, each a batch of decisions by the default profile, matches and
candidates included, with a log that is full all the time, so that every decision kept drops one. Times are CPU time of
the thread, garbage collection included.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
import tracemalloc
from array import array

from kvatlas.api.rest.explanation import explained
from kvatlas.configs.decisions import DecisionsConfig
from kvatlas.configs.schema import WeightsConfig
from kvatlas.indexer.factory import index_core
from kvatlas.indexer.match import RankLayout
from kvatlas.indexer.match_plan import MatchPlan, PlannedRank
from kvatlas.indexer.prefix import Prefix
from kvatlas.routing.decision_log import DecisionLog
from kvatlas.scorers.core.candidates import Candidates
from kvatlas.scorers.core.decision import Decision
from kvatlas.scorers.core.model import Candidate, Load, RequestView
from kvatlas.scorers.weights import default_profile

from ..common.benchmark import Benchmark
from ..common.tables import Cell, Table
from ..common.timing import microseconds

TIERS = ("gpu", "cpu", "storage")
BLOCK_SIZE, N_BLOCKS = 16, 1875
KEYS = array("Q", range(N_BLOCKS))
PROMPT = Prefix.from_keys({BLOCK_SIZE: KEYS})
PROFILE = default_profile(WeightsConfig(), tiers=TIERS)
REQUEST = RequestView(model="m", now=1.0, n_tokens=BLOCK_SIZE * N_BLOCKS)


class Fleet:
    """Endpoints as requests see them: each request gets candidates and matches of its own, loads are shared.

    Args:
        n_endpoints: how many; every fourth holds something of the prompt.
    """

    def __init__(self, n_endpoints: int) -> None:
        names = [f"vllm-{number}" for number in range(n_endpoints)]
        self._rows = [
            (
                name,
                f"10.0.0.{number}:8000",
                Load(random.randrange(9), random.randrange(99), random.random(), 0.9),
            )
            for number, name in enumerate(names)
        ]
        self._index = index_core().make_index()
        ranks = [
            PlannedRank(name, 0, BLOCK_SIZE, self._layout(held=not number % 4))
            for number, name in enumerate(names)
        ]
        self._plan = MatchPlan(ranks, tiers=TIERS, index_for=lambda _: self._index)

    def decide(self) -> Decision:
        """Make one decision of the default profile."""
        matches = self._plan.match(PROMPT)
        candidates = [
            Candidate(name, address, {}, load, matches.get(name)) for name, address, load in self._rows
        ]
        return PROFILE.decide(REQUEST, Candidates.of(candidates), rng=random.random)

    def _layout(self, *, held: bool) -> RankLayout:
        """Store an endpoint's blocks: the first of the prompt on its GPU, more of them in its CPU memory."""
        holders = [self._index.open(), self._index.open()]
        for holder, n_blocks in zip(holders, sorted(random.choices(range(1, N_BLOCKS), k=2)), strict=True):
            if held:
                self._index.store(holder, KEYS[:n_blocks])
        return RankLayout((*(1 << holder for holder in holders), 0), (1, 1, 1))


def memory(n_endpoints: int, n_decisions: int) -> tuple[float, float]:
    """Return the bytes that a kept decision takes, and those that the log counts; no two decisions share a load."""
    log = DecisionLog(max_count=n_decisions, max_bytes=2**40)
    tracemalloc.start()
    for number in range(n_decisions):
        log.add(Fleet(n_endpoints).decide(), request_id=f"{number:036}", at=0.0)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return taken / n_decisions, log.size_bytes / n_decisions


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--endpoints", type=int, default=64, help="candidates (64)")
    parser.add_argument("--rounds", type=int, default=300, help="of each kind (300)")
    parser.add_argument("--batch", type=int, default=50, help="decisions per round (50)")


def run(options: argparse.Namespace) -> list[Table]:
    """Measure decisions with and without keeping."""
    random.seed(1)
    limits = DecisionsConfig()
    log = DecisionLog(max_count=limits.max_count, max_bytes=limits.max_mebibytes * 2**20)
    fleet = Fleet(options.endpoints)

    def keep() -> None:
        log.add(fleet.decide(), request_id="00000000-0000-0000-0000-000000000000", at=time.time())

    keep()
    while log.page(limit=1, before=2):  # until the first decision has left
        keep()
    plain: list[float] = []
    kept: list[float] = []
    for _ in range(options.rounds):
        sides = [(plain, fleet.decide), (kept, keep)]
        random.shuffle(sides)
        for times, step in sides:
            times.append(microseconds(step, options.batch))
    added = [after - before for before, after in zip(plain, kept, strict=True)]
    newest = log.page(limit=1)[0]
    taken, counted = memory(options.endpoints, 200)
    rows: tuple[tuple[Cell, ...], ...] = (
        ("candidates and decision", "us", statistics.median(plain)),
        ("keeping adds", "us", statistics.median(added)),
        ("explaining one", "us", microseconds(lambda: explained(newest), 20)),
        ("memory of a kept one", "KiB", taken / 1024),
        ("as the bound counts it", "KiB", counted / 1024),
    )
    title = f"{options.endpoints} endpoints, {len(PROFILE.scorers)} scorers, {len(log)} decisions kept"
    return [Table(name="keeping", title=title, headings=("", "unit", "figure"), rows=rows)]


BENCHMARK = Benchmark(name="decision", about=__doc__, add_options=add_options, run=run)
