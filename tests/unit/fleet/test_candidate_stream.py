"""What requests see of a fleet is what was recorded before its state became columns.

`tests/golden/candidates` was written at e24e649, by `lines` of each case, one file per case, and again when endpoints without
events or metrics got a block size: without that size every line was the same. Written again when blocks of slower tiers began
to count before the first event of the fastest one, when predictions began to last while their requests wait, when the last
block of a predicted prompt began to be reused from a tier that gets copies, when stores began to show engines that compute
the last matched block again, and when predictions began to last for ten minutes of waiting: without that every line was the same each
time.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kvatlas.fleet.replicas.bookings import Bookings
from kvatlas.fleet.scrape.loads import LoadTable
from support.candidate_stream import CONFIG, CandidateStream
from support.fleets import make_fleet

GOLDEN = Path(__file__).parents[2] / "golden" / "candidates"
N_STEPS = 400
CASES = [(1, 1, False), (2, 5, False), (3, 12, True), (4, 40, False), (5, 40, True), (6, 150, False)]
"""Seed, endpoints, and whether there is another replica."""


async def lines(seed: int, n_endpoints: int, *, has_sibling: bool) -> list[str]:
    """Return one line per request of a stream."""
    loads = LoadTable(stale_after_s=CONFIG.metrics_scrape.stale_after)
    siblings = Bookings() if has_sibling else None
    async with make_fleet(CONFIG, loads=loads, siblings=siblings) as fleet:
        stream = CandidateStream(fleet, loads, seed=seed, n_endpoints=n_endpoints, siblings=siblings)
        return list(stream.steps(N_STEPS))


@pytest.mark.parametrize(("seed", "n_endpoints", "has_sibling"), CASES)
async def test_requests_see_what_was_recorded(seed: int, n_endpoints: int, *, has_sibling: bool) -> None:
    found = await lines(seed, n_endpoints, has_sibling=has_sibling)

    for line, recorded in zip(found, (GOLDEN / f"{seed}.txt").read_text().splitlines(), strict=True):
        assert line == recorded
