"""The rows of a fleet: which a request may use, and that a decision's table is its own."""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterator

import numpy as np
import pytest

from kvatlas.configs.address import HostPort
from kvatlas.configs.endpoints import EndpointAddresses, RankAddresses
from kvatlas.fleet.fleet import Fleet
from kvatlas.fleet.scrape.loads import LoadTable
from kvatlas.scorers.core.model import Load, RequestView
from kvatlas.scorers.latency.cost_model import CostModel
from kvatlas.scorers.latency.lines import BATCH, MEMORY
from kvatlas.scorers.latency.params import LatencyCostParams
from support.fleets import make_fleet


@pytest.fixture
def loads() -> LoadTable:
    return LoadTable(stale_after_s=2.0)


@pytest.fixture
async def fleet(loads: LoadTable) -> AsyncIterator[Fleet]:
    async with make_fleet(loads=loads) as fleet:
        for number, name in enumerate("abcd"):
            add(fleet, name, f"10.0.0.{number}", zone="xy"[number % 2])
        yield fleet


def add(fleet: Fleet, name: str, host: str | None, *, zone: str) -> None:
    serving = HostPort(host, 8000) if host is not None else None
    fleet.add(name, EndpointAddresses(serving, None, (RankAddresses(0, None, None),)), {"zone": zone})


def names(fleet: Fleet, *subset: str, zone: str | None = None) -> str:
    """Return the names of the endpoints that a request may use."""
    table = fleet.candidates(
        None,
        now=1.0,
        subset=frozenset(subset) if subset else None,
        labels={"zone": zone} if zone is not None else None,
    )
    assert [each.name for each in table] == list(table.names)
    return "".join(table.names)


async def test_removed_endpoint_never_shows_and_its_row_is_used_again(fleet: Fleet, loads: LoadTable) -> None:
    loads.put("b", Load(1, 2, 0.5, 1.0))
    loads.put("c", Load(3, 4, 0.5, 1.0))
    fleet.in_flight.book("b", tokens=9, now=1.0)
    fleet.forget("b")
    add(fleet, "e", "10.0.0.9", zone="x")
    loads.put("b", Load(7, 7, 0.5, 1.0))  # too late

    table = fleet.candidates(None, now=1.0)

    assert list(table.names) == ["a", "c", "d", "e"]
    assert np.isnan(table.waiting).tolist() == [True, False, True, True]
    assert (table.waiting[1], table.running[1], table.in_flight_requests.tolist()) == (3.0, 4.0, [0.0] * 4)
    assert names(fleet, "10.0.0.1:8000") == ""


async def test_many_endpoints_may_come_and_go(fleet: Fleet) -> None:
    for number in range(100):
        add(fleet, f"n{number}", f"10.1.0.{number}", zone="x")
    for number in range(0, 100, 2):
        fleet.forget(f"n{number}")
    fleet.forget("a")

    assert fleet.candidates(None, now=1.0).names == ("b", "c", "d", *(f"n{n}" for n in range(1, 100, 2)))


async def test_selections_follow_labels_addresses_and_endpoints(fleet: Fleet) -> None:
    assert (names(fleet, zone="x"), names(fleet, zone="z"), names(fleet)) == ("ac", "", "abcd")
    assert names(fleet, "10.0.0.3", "10.0.0.0:8000", "10.0.0.1:1") == "ad"
    assert names(fleet, "10.0.0.3", "10.0.0.2", zone="x") == "c"

    fleet.relabel("b", {"zone": "x"})
    fleet.forget("a")
    add(fleet, "e", None, zone="x")  # takes no requests

    assert (names(fleet, zone="x"), names(fleet), names(fleet, "10.0.0.0", "")) == ("bc", "bcd", "")


async def test_more_subsets_than_are_kept_are_still_right(fleet: Fleet) -> None:
    for number in range(200):
        assert names(fleet, "10.0.0.2", f"10.2.0.{number}") == "c"


async def test_requests_that_have_ended_since_the_scrape_neither_run_nor_hold_blocks(
    fleet: Fleet, loads: LoadTable
) -> None:
    costs = CostModel(LatencyCostParams(fit=False), ("gpu",))
    booked = [fleet.in_flight.book("a", tokens=9, now=1.0) for _ in range(3)]
    for name in "ab":  # one of the four was sent by somebody else, and all four at `b`
        loads.put(name, Load(0, 4, 0.96, 1.0, gpu_tokens=10_000))

    def features(line: int) -> list[float]:
        table = fleet.candidates(None, now=1.0).take(np.array([0, 1]))
        found: list[float] = (
            costs.expect(RequestView(model="m", now=1.0, n_tokens=1000), table).features[line].tolist()
        )
        return found

    waits = features(MEMORY)
    assert waits[0] == waits[1] > 0.0
    for each in booked[:2]:
        each.ended()
    assert features(BATCH) == [2.0, 4.0]
    assert features(MEMORY) == [0.0, waits[1]]
    for _ in range(2):
        fleet.in_flight.book("a", tokens=9, now=1.0)
    assert features(BATCH) == [4.0, 4.0], "new ones took their place"
    loads.put("a", Load(0, 1, 0.3, 1.1, gpu_tokens=10_000))
    assert features(BATCH) == [3.0, 4.0], "a scrape that came before they began there"


async def test_table_of_a_decision_stays_when_the_fleet_changes(fleet: Fleet, loads: LoadTable) -> None:
    loads.put("a", Load(1, 2, 0.5, 1.0))
    fleet.atlas.ledger("a", 0).use_block_size(4)
    table = fleet.candidates(fleet.atlas.prefix(array("I", range(9))), now=1.0)
    before = list(table)

    loads.put("a", Load(5, 5, 0.9, 2.0))
    fleet.in_flight.book("a", tokens=9, now=1.0)
    fleet.forget("b")
    fleet.relabel("c", {})

    assert list(table) == before


async def test_load_that_is_too_old_is_unknown_until_a_newer_one_comes(
    fleet: Fleet, loads: LoadTable
) -> None:
    loads.put("a", Load(1, 2, 0.5, 1.0))
    loads.put("b", Load(1, 2, 0.5, 2.5))

    def known(now: float) -> list[bool]:
        return [each.load is not None for each in fleet.candidates(None, now=now)][:2]

    assert (known(3.0), known(3.5), known(3.0), known(9.0)) == (
        [True, True], [False, True], [True, True], [False, False]
    )  # fmt: skip
    loads.put("a", Load(1, 2, 0.5, 9.0))
    assert known(9.0) == [True, False]
