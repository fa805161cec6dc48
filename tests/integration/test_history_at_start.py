"""Event histories that a starting process waits for, over real sockets."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator

import pytest

from kvatlas.configs.address import HostPort
from kvatlas.configs.endpoints import EndpointAddresses, RankAddresses
from kvatlas.events.stream import Trust
from kvatlas.fleet.fleet import Fleet
from kvatlas.fleet.rank import CONNECTING_S, REPLAYING_S, UNANSWERED_S
from kvatlas.sim.held_port import HeldPort
from support.fleets import make_fleet
from support.recording import player
from support.waiting import until


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with make_fleet() as fleet:
        yield fleet


def add(fleet: Fleet, events: str, replay: str | None) -> None:
    rank = RankAddresses(0, events, replay)
    fleet.add("a", EndpointAddresses(serving=HostPort("127.0.0.1", 1), metrics=None, ranks=(rank,)), {})


def waited_s(fleet: Fleet) -> float:
    """Return how long a process waits for the endpoint in its present state."""
    endpoint = fleet.get("a")
    assert endpoint is not None
    limits = (0.0, CONNECTING_S, UNANSWERED_S, REPLAYING_S, math.inf)
    return next(each for each in limits if not fleet.awaited(now=endpoint.added_at + each + 0.001))


def is_connected(fleet: Fleet) -> bool:
    endpoint = fleet.get("a")
    assert endpoint is not None
    subscription = endpoint.ranks[0].subscription
    assert subscription is not None
    return subscription.stream.is_connected


async def test_engine_without_events_is_waited_for_only_to_connect(fleet: Fleet) -> None:
    ports = HeldPort(), HeldPort()
    add(fleet, f"tcp://127.0.0.1:{ports[0].number}", f"tcp://127.0.0.1:{ports[1].number}")
    assert waited_s(fleet) == CONNECTING_S


async def test_engine_that_answers_is_not_waited_for_when_it_has_published_nothing(fleet: Fleet) -> None:
    async with player() as engine:
        add(fleet, engine.events, engine.replay)
        await until(lambda: not fleet.awaited(now=0))
        endpoint = fleet.get("a")
        assert endpoint is not None
        assert endpoint.trust is Trust.LIVE


async def test_engine_without_replay_is_not_waited_for_when_it_is_connected(fleet: Fleet) -> None:
    async with player() as engine:
        add(fleet, engine.events, None)
        await until(lambda: is_connected(fleet))
        assert waited_s(fleet) == 0


async def test_engine_whose_replay_is_silent_is_waited_for_two_seconds(fleet: Fleet) -> None:
    silent = HeldPort()
    async with player() as engine:
        add(fleet, engine.events, f"tcp://127.0.0.1:{silent.number}")
        await until(lambda: is_connected(fleet))
        assert waited_s(fleet) == UNANSWERED_S == 2
