"""The sizes of a run: how much is measured."""

from __future__ import annotations

from dataclasses import dataclass

from .fleet import Shape
from .loads import IngestLoad


@dataclass(frozen=True, kw_only=True)
class Size:
    """One size of the benchmark.

    Attributes:
        fleet: of everything that is measured in one process.
        match_rounds: questions for each kind of prompt.
        churn_rounds: prompts stored and removed in full indexes.
        paced_rounds: rounds of questions, alone and while another thread stores.
        n_removed: endpoints removed.
        n_evicting: store events into a tier that is full.
        ingest: streams.
        ingest_rounds: runs of each stream.
        huge: fleet for memory and for the longest operations.
        huge_runs: times that it is measured.
        shared_blocks: blocks of one tier that all endpoints share, beside `huge`.
        books: fleet for the memory of whole systems.
    """

    fleet: Shape
    match_rounds: int
    churn_rounds: int
    paced_rounds: int
    n_removed: int
    n_evicting: int
    ingest: tuple[IngestLoad, ...]
    ingest_rounds: int
    huge: Shape
    huge_runs: int
    shared_blocks: int
    books: Shape


def _ingest(n_publishers: tuple[int, ...], *, n_bulk: int, n_churn: int) -> tuple[IngestLoad, ...]:
    """Return streams of `n_bulk` and `n_churn` measured messages over all publishers."""
    bulk = [IngestLoad("bulk", n, max(1, n_bulk // n)) for n in n_publishers]
    churn = [IngestLoad("churn", n, max(1, n_churn // n)) for n in n_publishers]
    return (*bulk, *churn)


SIZES = {
    "full": Size(
        fleet=Shape(64),
        match_rounds=200,
        churn_rounds=200,
        paced_rounds=10,
        n_removed=16,
        n_evicting=600,
        ingest=(*_ingest((8, 64, 512), n_bulk=512, n_churn=2048), IngestLoad("churn", 2, 1500)),
        ingest_rounds=3,
        huge=Shape(512, gpu_blocks=3300, cpu_blocks=16_300),
        huge_runs=2,
        shared_blocks=1_000_000,
        books=Shape(20),
    ),
    "quick": Size(
        fleet=Shape(8),
        match_rounds=50,
        churn_rounds=50,
        paced_rounds=2,
        n_removed=4,
        n_evicting=200,
        ingest=_ingest((8, 64), n_bulk=128, n_churn=512),
        ingest_rounds=1,
        huge=Shape(32, gpu_blocks=3300, cpu_blocks=16_300),
        huge_runs=1,
        shared_blocks=100_000,
        books=Shape(4),
    ),
    "tiny": Size(
        fleet=Shape(2, gpu_blocks=3000, cpu_blocks=11_000),
        match_rounds=2,
        churn_rounds=2,
        paced_rounds=1,
        n_removed=1,
        n_evicting=30,
        ingest=_ingest((2,), n_bulk=4, n_churn=4),
        ingest_rounds=1,
        huge=Shape(2, gpu_blocks=3000, cpu_blocks=11_000),
        huge_runs=1,
        shared_blocks=20_000,
        books=Shape(1, gpu_blocks=3000, cpu_blocks=11_000),
    ),
}
"""Name -> size. `tiny` shows that everything still works; its figures mean nothing."""
