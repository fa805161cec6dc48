"""A copy of a collection from a real HTTP server that restarts, loses history, refuses, stalls and disconnects.

The copy is always a state that the server had, never older than the one before; when the faults stop it is the
current state.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from kvatlas.fleet.kubernetes.client.follower import Collection, Follower
from kvatlas.fleet.kubernetes.client.list_watch import ListWatch
from kvatlas.fleet.kubernetes.client.wire import Named
from support.api_server import ApiServerDouble
from support.cluster_machine import FAST, NAMES, OBJECTIVES, OTHERS, PODS, POOLS, FaultyServer, WholeDiscovery

FAULTS: dict[str, Callable[[ApiServerDouble], object]] = {
    "another kind changes": lambda server: server.put(OTHERS, "x", {}),
    "bookmark": lambda server: server.bookmark(),
    "compaction": lambda server: server.compact(),
    "410 by HTTP": lambda server: setattr(server.faults, "expired_by", "http"),
    "watches close": lambda server: server.break_watches("close"),
    "watches reset": lambda server: server.break_watches("reset"),
    "watches end in a line": lambda server: server.break_watches("mid_line"),
    "watches end with 500": lambda server: server.break_watches("error"),
    "429": lambda server: setattr(server.faults, "n_throttled", 2),
    "500": lambda server: setattr(server.faults, "n_failing", 2),
    "a replica lags": lambda server: setattr(server.faults, "n_lagging", 2),
    "lists are cut": lambda server: setattr(server.faults, "n_cut_lists", 2),
    "401": lambda server: setattr(server.faults, "unauthorized", True),
    "silence": lambda server: setattr(server.faults, "stalled", True),
    "connections stall": lambda server: server.stall_connections(),
    "lists are slow": lambda server: setattr(server.faults, "slow_lists", {PODS, POOLS, OBJECTIVES}),
    "403": lambda server: setattr(server.faults, "forbidden", {PODS, POOLS, OBJECTIVES}),
    "404": lambda server: setattr(server.faults, "not_served", {PODS, POOLS, OBJECTIVES}),
    "byte by byte": lambda server: setattr(server, "piece_bytes", 1),
    "small pages": lambda server: setattr(server, "max_page", 2),
}

State = frozenset[tuple[str, str, str]]
"""(name, uid, resourceVersion) of every object."""


class FaultyDouble(FaultyServer):
    """The double with all of its faults."""

    def make_server(self) -> ApiServerDouble:
        self.double = ApiServerDouble()
        self.double.groups = {"llm-d.ai/v1alpha2": ["inferenceobjectives"]}
        return self.double

    @rule(fault=st.sampled_from(sorted(FAULTS)))
    def go_wrong(self, fault: str) -> None:
        FAULTS[fault](self.double)


class OneCollection(FaultyDouble):
    """Pods of one selector, followed."""

    def __init__(self) -> None:
        self.states: list[State] = [frozenset()]
        self.seen = 0
        self.copy = ListWatch(Named, timing=FAST, rng=Random(1).random)
        super().__init__()

    async def follow(self) -> None:
        collection = Collection(PODS, label_selector="app=a")
        await Follower(self.client, collection, self.copy, on_change=self.check, clock=time.monotonic).run()

    def agrees(self) -> bool:
        return state_of(self.copy.objects.values()) == self.states[-1]

    def check(self) -> None:
        """Check that the copy is a state of the server, and none older than the last one."""
        if not self.copy.synced:
            return
        now = state_of(self.copy.objects.values())
        later = [number for number, state in enumerate(self.states) if state == now and number >= self.seen]
        assert later, (
            f"the copy is {sorted(now)}, which was no state of the server after {sorted(self.states[self.seen])}"
        )
        self.seen = later[0]

    def note(self) -> None:
        """Remember the server's state."""
        objects = self.server.objects(PODS).values()
        chosen = [named(each) for each in objects if each["metadata"]["labels"] == {"app": "a"}]
        self.states.append(state_of(chosen))

    @rule(name=NAMES, chosen=st.booleans(), weight=st.integers(0, 3000))
    def put(self, name: str, *, chosen: bool, weight: int) -> None:
        labels = {"app": "a" if chosen else "b"}
        self.server.put(PODS, name, {"metadata": {"labels": labels}, "status": {"text": "ü" * weight}})
        self.note()

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        if name in self.server.objects(PODS):
            self.server.delete(PODS, name)
            self.note()


class DiscoveryOfTheDouble(WholeDiscovery, FaultyDouble):
    """A pool and its pods, followed in the double."""


def named(found: dict[str, Any]) -> Named:
    return msgspec.convert(found, Named)


def state_of(objects: Any) -> State:
    return frozenset(
        (each.metadata.name, each.metadata.uid, each.metadata.resource_version) for each in objects
    )


@pytest.mark.parametrize("machine", [OneCollection, DiscoveryOfTheDouble])
def test_copy_equals_the_state_of_the_server_when_faults_stop(machine: type[FaultyServer]) -> None:
    run_state_machine_as_test(machine, settings=settings(max_examples=20, stateful_step_count=40))
