"""Reconciliation from the endpoints of one configuration to those of another."""

from __future__ import annotations

import logging
from array import array
from collections.abc import AsyncGenerator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.configs.address import HostPort
from kvatlas.configs.endpoints import EndpointAddresses, RankAddresses
from kvatlas.configs.schema import KVAtlasConfig
from kvatlas.events.errors import SubscriptionError
from kvatlas.events.model import BlockStored, EngineHash
from kvatlas.events.stream import Trust
from kvatlas.fleet.errors import ConfigRefusedError
from kvatlas.fleet.fleet import Fleet
from kvatlas.fleet.instance import Instance
from kvatlas.fleet.roster import FleetPlan, Roster, Wanted, carry_out, plan_fleet, wanted_endpoints
from support.fleets import NOWHERE, make_config, make_endpoint, make_fleet, with_endpoints

A, B, C = (make_endpoint(name, number) for number, name in enumerate("abc", start=1))
FEW_SOCKETS = 3
"""Sockets for one followed rank, which takes a socket and the pair of its monitor, but not for two."""


def plan(old: KVAtlasConfig, new: KVAtlasConfig) -> FleetPlan:
    return plan_fleet(wanted_endpoints(old), wanted_endpoints(new))


def store(fleet: Fleet, name: str) -> None:
    """Store a block."""
    fleet.atlas.apply(name, 0, [BlockStored((EngineHash(1),), None, array("I", range(16)), 16)])


def chosen_from(fleet: Fleet) -> list[str]:
    """Return the names of the endpoints that may take a request."""
    return list(fleet.candidates(None, now=0.0).names)


def held(fleet: Fleet, name: str) -> int:
    return fleet.atlas.occupancy(name)[0].residencies


def names(fleet: Fleet) -> list[str]:
    return sorted(endpoint.name for endpoint in fleet)


@pytest.fixture
async def fleet() -> AsyncGenerator[Fleet]:
    """Provide a fleet of endpoints `a` and `b`, each with a block."""
    start = with_endpoints(A, B)
    async with make_fleet(start) as fleet:
        carry_out(plan(make_config(), start), fleet)
        store(fleet, "a")
        store(fleet, "b")
        yield fleet


@pytest.mark.parametrize(
    ("new", "come", "moved", "gone", "relabelled"),
    [
        pytest.param((A, B), "", "", "", "", id="same"),
        pytest.param((B, A), "", "", "", "", id="other_order"),
        pytest.param((A, B, C), "c", "", "", "", id="one_more"),
        pytest.param((B,), "", "", "a", "", id="one_less"),
        pytest.param((make_endpoint("a", 9), B), "", "a", "", "", id="other_address"),
        pytest.param((make_endpoint("a", 1, events=""), B), "", "a", "", "", id="other_events"),
        pytest.param((make_endpoint("a", 1, metrics="http://h/"), B), "", "", "", "", id="other_metrics"),
        pytest.param((make_endpoint("a", 1, dataParallelSize=2), B), "", "a", "", "", id="more_ranks"),
        pytest.param((make_endpoint("a", 1, labels={"x": "y"}), B), "", "", "", "a", id="other_labels"),
        pytest.param((make_endpoint("a", 9, labels={"x": "y"}), C), "c", "a", "b", "", id="all_at_once"),
    ],
)  # fmt: skip
def test_plan_is_what_differs(
    new: tuple[dict[str, object], ...], come: str, moved: str, gone: str, relabelled: str
) -> None:
    found = plan(with_endpoints(A, B), with_endpoints(*new))

    assert [set(each) for each in (found.new, found.moved, found.gone, found.relabelled)] == [
        set(come),
        set(moved),
        set(gone),
        set(relabelled),
    ]
    assert set(found.before) == {*moved, *gone}


async def test_endpoint_keeps_what_is_known_when_it_is_scraped_elsewhere(fleet: Fleet) -> None:
    booking = fleet.in_flight.book("a", tokens=5, now=0.0)
    before = with_endpoints(A, B)
    for url in ("http://h:1/", "http://h:2/", ""):
        after = with_endpoints(make_endpoint("a", 1, metrics=url), B)
        carry_out(plan(before, after), fleet)
        status, before = fleet.scrape_status("a"), after
        assert (status.url if status is not None else "") == url
    assert (held(fleet, "a"), fleet.in_flight.own("a").requests) == (1, 1)
    booking.ended()
    assert fleet.in_flight.own("a").requests == 0


def test_other_event_ports_move_the_endpoints_that_name_none() -> None:
    derived = {"name": "d", "address": "127.0.0.1:9"}

    found = plan(with_endpoints(A, derived), with_endpoints(A, derived, events={"port": 6000}))

    assert set(found.moved) == {"d"}


def wanted(address: int, labels: dict[str, str]) -> Wanted:
    return Wanted(EndpointAddresses(HostPort("h", address), None, ()), labels)


LISTS = st.dictionaries(
    st.sampled_from("abcd"),
    st.builds(wanted, st.integers(1, 2), st.sampled_from(({}, {"x": "1"}, {"x": "2"}))),
)


@given(old=LISTS, new=LISTS)
def test_plan_leads_from_any_list_to_any_other(old: dict[str, Wanted], new: dict[str, Wanted]) -> None:
    found = plan_fleet(old, new)

    after = {name: each for name, each in old.items() if name not in found.before} | {
        **found.moved,
        **found.new,
    }
    after |= {name: Wanted(after[name].addresses, labels) for name, labels in found.relabelled.items()}
    assert after == new
    assert all(old[name] == each for name, each in found.before.items())
    untouched = old.keys() & new.keys() - found.moved.keys() - found.relabelled.keys()
    assert all(old[name] == new[name] for name in untouched)


async def test_endpoints_that_stay_keep_what_they_hold_and_moved_ones_start_clean(fleet: Fleet) -> None:
    carry_out(plan(with_endpoints(A, B), with_endpoints(A, make_endpoint("b", 9), C)), fleet)

    assert names(fleet) == ["a", "b", "c"]
    assert [held(fleet, name) for name in "abc"] == [1, 0, 0]
    moved = fleet.get("b")
    assert moved is not None
    assert moved.addresses.serving == HostPort("127.0.0.1", 9)


async def test_relabelled_endpoint_keeps_what_it_holds(fleet: Fleet) -> None:
    carry_out(plan(with_endpoints(A, B), with_endpoints(make_endpoint("a", 1, labels={"x": "y"}), B)), fleet)

    assert held(fleet, "a") == 1
    (a, _) = fleet.candidates(None, now=0.0)
    assert a.labels == {"x": "y"}


async def test_name_of_a_registered_instance_is_refused_and_nothing_touched(fleet: Fleet) -> None:
    addresses = EndpointAddresses(None, None, (RankAddresses(0, NOWHERE, None),))
    fleet.add("c", addresses, {}, instance=Instance("c", model="other"))

    with pytest.raises(
        ConfigRefusedError, match="endpoint 'c' exists already, registered as an instance or discovered; "
    ):
        carry_out(plan(with_endpoints(A, B), with_endpoints(C)), fleet)

    assert names(fleet) == ["a", "b", "c"]
    assert held(fleet, "a") == 1


async def test_new_endpoint_that_cannot_be_followed_is_refused_and_nothing_touched() -> None:
    start = with_endpoints(A)
    async with make_fleet(start, max_sockets=FEW_SOCKETS) as fleet:
        carry_out(plan(make_config(), start), fleet)
        store(fleet, "a")

        with pytest.raises(ConfigRefusedError, match="endpoint 'b': cannot open another event socket"):
            carry_out(plan(start, with_endpoints(make_endpoint("a", 1, labels={"x": "y"}), B)), fleet)

        assert names(fleet) == ["a"]
        assert held(fleet, "a") == 1
        (a,) = fleet.candidates(None, now=0.0)
        assert a.labels == {}


async def test_endpoint_that_cannot_move_is_where_it_was_again(fleet: Fleet) -> None:
    unusable = EndpointAddresses(HostPort("127.0.0.1", 9), None, (RankAddresses(0, "tcp://no port", None),))
    before = wanted_endpoints(with_endpoints(A, B))

    with pytest.raises(ConfigRefusedError, match="endpoint 'a': cannot subscribe to 'tcp://no port'"):
        carry_out(plan_fleet(before, {"a": Wanted(unusable, {}), "c": before["b"]}), fleet)

    assert names(fleet) == ["a", "b"]
    (a, b) = fleet.candidates(None, now=0.0)
    assert {a.address, b.address} == {"127.0.0.1:1", "127.0.0.1:2"}


async def test_endpoint_that_can_move_nowhere_is_routed_to_and_said_to_be_blind(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, logger="kvatlas.fleet.roster")
    start = with_endpoints(A)
    async with make_fleet(start, max_sockets=FEW_SOCKETS) as fleet:
        carry_out(plan(make_config(), start), fleet)

        with pytest.raises(ConfigRefusedError):
            carry_out(plan(start, with_endpoints(make_endpoint("a", 9))), fleet)

        (a,) = fleet.candidates(None, now=0.0)
        assert a.address == "127.0.0.1:1"
    assert "endpoint a gets requests, but its events cannot be followed again" in caplog.text


async def test_endpoint_whose_other_streams_cannot_be_followed_learns_from_routing() -> None:
    start = with_endpoints(A)
    async with make_fleet(start, max_sockets=FEW_SOCKETS) as fleet:
        carry_out(plan(make_config(), start), fleet)
        (endpoint,) = fleet
        with pytest.raises(SubscriptionError, match="cannot open another event socket"):
            fleet.subscriptions.replace(endpoint, (RankAddresses(0, "tcp://127.0.0.1:9", None),))

        (rank,) = endpoint.ranks
        assert (rank.subscription, endpoint.trust) == (None, Trust.DARK)
        assert rank.ledger.learns_from_routing


# -- rosters -----------------------------------------------------------------------------------------------------------


async def test_roster_brings_the_fleet_to_each_list_and_shows_the_last_one() -> None:
    async with make_fleet() as fleet:
        roster = Roster(fleet)
        shown = roster.wanted
        roster.add("a", wanted_endpoints(with_endpoints(A))["a"])
        store(fleet, "a")
        for endpoints, expected in (((A, B), "ab"), ((C, A), "ac"), ((), "")):
            roster.bring_to(wanted_endpoints(with_endpoints(*endpoints)))
            assert names(fleet) == sorted(shown) == list(expected)
            assert not expected or held(fleet, "a") == 1


async def test_roster_leaves_what_another_one_has_added_alone() -> None:
    async with make_fleet() as fleet:
        configured, discovered = Roster(fleet), Roster(fleet)
        configured.bring_to(wanted_endpoints(with_endpoints(A)))
        discovered.bring_to(wanted_endpoints(with_endpoints(B, C)))
        configured.bring_to({})
        assert names(fleet) == ["b", "c"]

        with pytest.raises(ConfigRefusedError, match="endpoint 'b' exists already"):
            configured.bring_to(wanted_endpoints(with_endpoints(A, B)))
        assert (dict(configured.wanted), names(fleet)) == ({}, ["b", "c"])


async def test_refused_list_is_planned_anew_from_the_one_before() -> None:
    async with make_fleet(max_sockets=FEW_SOCKETS) as fleet:
        roster = Roster(fleet)
        roster.bring_to(wanted_endpoints(with_endpoints(A)))
        with pytest.raises(ConfigRefusedError):
            roster.bring_to(wanted_endpoints(with_endpoints(A, B)))

        plan = roster.bring_to(wanted_endpoints(with_endpoints(make_endpoint("b", 2, events=""))))

        assert (set(plan.new), plan.gone, names(fleet)) == ({"b"}, ("a",), ["b"])


async def test_connection_that_was_prepared_is_taken_and_none_is_opened_beside_it() -> None:
    async with make_fleet(max_sockets=FEW_SOCKETS) as fleet:
        roster, wanted = Roster(fleet), wanted_endpoints(with_endpoints(A))
        assert len(list(roster.preparing(wanted))) == 1
        assert names(fleet) == []

        roster.bring_to(wanted)
        fleet.subscriptions.prepared()

        assert names(fleet) == ["a"]


async def test_endpoints_come_and_go_one_by_one_and_requests_see_one_switch() -> None:
    wanted = wanted_endpoints(with_endpoints(B, C))
    async with make_fleet() as fleet:
        roster = Roster(fleet)
        roster.bring_to(wanted_endpoints(with_endpoints(A)))

        assert [(names(fleet), chosen_from(fleet)) for _ in roster.taking_in(wanted)] == [
            (["a", "b"], ["a"]), (["a", "b", "c"], ["a"])
        ]  # fmt: skip
        gone = roster.switch(wanted)
        assert (gone, chosen_from(fleet)) == (["a"], ["b", "c"])
        assert [names(fleet) for _ in roster.removing(gone)] == [["b", "c"]]

        assert chosen_from(fleet) == ["b", "c"]
        assert roster.wanted == wanted


async def test_endpoint_takes_requests_again_if_it_is_wanted_again_before_it_was_removed() -> None:
    start = wanted_endpoints(with_endpoints(A, B))
    async with make_fleet(with_endpoints(A, B)) as fleet:
        roster = Roster(fleet)
        roster.bring_to(start)

        assert roster.switch(wanted_endpoints(with_endpoints(A))) == ["b"]
        assert chosen_from(fleet) == ["a"]
        assert roster.switch(start) == []
        assert chosen_from(fleet) == ["a", "b"]


async def test_switch_moves_endpoints_at_once() -> None:
    wanted = wanted_endpoints(with_endpoints(make_endpoint("a", 9)))
    async with make_fleet() as fleet:
        roster = Roster(fleet)
        roster.bring_to(wanted_endpoints(with_endpoints(A)))
        store(fleet, "a")
        assert [held(fleet, "a") for _ in roster.taking_in(wanted)] == []

        assert roster.switch(wanted) == []

        assert (held(fleet, "a"), roster.wanted) == (0, wanted)


@pytest.mark.parametrize("gives_up", [False, True], ids=["refused", "given_up"])
async def test_endpoints_taken_in_before_the_end_leave_again(*, gives_up: bool) -> None:
    wanted = wanted_endpoints(with_endpoints(B, C))
    async with make_fleet(max_sockets=1000 if gives_up else 2 * FEW_SOCKETS) as fleet:
        roster = Roster(fleet)
        roster.bring_to(wanted_endpoints(with_endpoints(A)))

        steps = roster.taking_in(wanted)
        next(steps)
        assert names(fleet) == ["a", "b"]
        if gives_up:
            steps.close()
        else:
            with pytest.raises(ConfigRefusedError, match="endpoint 'c'"):
                next(steps)

        assert names(fleet) == ["a"]
        assert roster.wanted == wanted_endpoints(with_endpoints(A))


async def test_connections_that_cannot_be_made_are_refused_before_anything_has_changed() -> None:
    async with make_fleet(max_sockets=FEW_SOCKETS) as fleet:
        roster, wanted = (
            Roster(fleet),
            wanted_endpoints(with_endpoints(A, B | {"events": "tcp://127.0.0.1:2"})),
        )
        with pytest.raises(ConfigRefusedError, match=r"^endpoint 'b': cannot open another event socket"):
            list(roster.preparing(wanted))
        fleet.subscriptions.prepared()

        assert names(fleet) == []
