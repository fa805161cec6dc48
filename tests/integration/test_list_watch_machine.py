"""A copy of a collection beside a real HTTP server that restarts, forgets, refuses, stalls and cuts.

At every moment the copy is a state that the server was in, and never an older one than before; when the faults stop it
is the server's state of now.
"""

from __future__ import annotations

import asyncio
import time
from random import Random
from typing import Any, Literal

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from kvatlas.api.kubernetes.access import Access
from kvatlas.api.kubernetes.api_server import ApiServer
from kvatlas.api.kubernetes.backoff import Pace
from kvatlas.api.kubernetes.follower import Collection, Follower
from kvatlas.api.kubernetes.list_watch import ListWatch
from kvatlas.api.kubernetes.wire import Named
from support.api_server import ApiServerDouble
from support.waiting import until

PODS = "/api/v1/namespaces/default/pods"
OTHERS = "/api/v1/namespaces/default/leases"
SELECTOR = "app=a"
NAMES = st.sampled_from(["a", "b", "c", "d"])
FAST = Pace(first_delay_s=0.002, max_delay_s=0.01, healthy_s=0.1, short_watch_s=0.001, missing_s=60)

State = frozenset[tuple[str, str, str]]
"""(name, uid, resourceVersion) of every object."""


class Cluster(RuleBasedStateMachine):
    """One API server, its faults, and one follower."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.server = ApiServerDouble()
        self.do(self.server.start())
        self.up = True
        self.states: list[State] = [frozenset()]
        self.seen = 0
        self.client = ApiServer(Access(self.server.url), clock=time.monotonic)
        self.do(self.client.start())
        self.copy = ListWatch(Named, pace=FAST, rng=Random(1).random)
        self.follower = Follower(
            self.client,
            Collection(PODS, label_selector=SELECTOR),
            self.copy,
            on_change=self.check,
            clock=time.monotonic,
        )
        self.task = self.loop.create_task(self.follower.run())
        self.let_run()

    def do(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    def let_run(self) -> None:
        self.do(asyncio.sleep(0.002))

    def check(self) -> None:
        """The copy is what the server had when it, or what came after it, was true."""
        if not self.copy.synced:
            return
        now = state_of(self.copy.objects.values())
        later = [number for number, state in enumerate(self.states) if state == now and number >= self.seen]
        assert later, (
            f"the copy is {sorted(now)}, which the server was not after {sorted(self.states[self.seen])}"
        )
        self.seen = later[0]

    def note(self) -> None:
        """Remember what the server has."""
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

    @rule()
    def change_other_kind(self) -> None:
        self.server.put(OTHERS, "x", {})

    @rule()
    def bookmark(self) -> None:
        self.server.bookmark()

    @rule(by=st.sampled_from(["stream", "http"]))
    def compact(self, by: Literal["stream", "http"]) -> None:
        self.server.compact()
        self.server.faults.expired_by = by

    @rule(how=st.sampled_from(["close", "reset", "mid_line", "error"]))
    def break_watches(self, how: Literal["close", "reset", "mid_line", "error"]) -> None:
        self.server.break_watches(how)

    @rule(n=st.integers(1, 3), kind=st.sampled_from(["n_throttled", "n_failing", "n_cut_lists"]))
    def fail_some(self, n: int, kind: str) -> None:
        setattr(self.server.faults, kind, n)

    @rule(kind=st.sampled_from(["unauthorized", "stalled"]), on=st.booleans())
    def refuse(self, kind: str, *, on: bool) -> None:
        setattr(self.server.faults, kind, on)

    @rule(kind=st.sampled_from(["forbidden", "not_served"]), on=st.booleans())
    def hide(self, kind: str, *, on: bool) -> None:
        setattr(self.server.faults, kind, {PODS} if on else set())

    @rule(size=st.sampled_from([0, 1, 7, 1000]), page=st.sampled_from([1, 2, 1000]))
    def be_slow(self, size: int, page: int) -> None:
        self.server.piece_bytes, self.server.max_page = size, page

    @rule()
    def stop_or_start(self) -> None:
        self.do(self.server.stop() if self.up else self.server.start())
        self.up = not self.up

    @rule()
    def wait(self) -> None:
        self.let_run()

    @rule()
    def settle(self) -> None:
        """The faults stop; soon the copy is the server's state."""
        if not self.up:
            self.stop_or_start()
        self.server.heal()
        self.do(until(lambda: state_of(self.copy.objects.values()) == self.states[-1], what="the copy"))

    @invariant()
    def the_task_runs(self) -> None:
        self.let_run()
        assert not self.task.done()

    def teardown(self) -> None:
        try:
            self.settle()
        finally:
            self.task.cancel()
            self.do(asyncio.wait([self.task]))
            self.do(self.client.stop())
            self.do(self.server.stop())
            self.loop.close()


def named(found: dict[str, Any]) -> Named:
    return msgspec.convert(found, Named)


def state_of(objects: Any) -> State:
    return frozenset(
        (each.metadata.name, each.metadata.uid, each.metadata.resource_version) for each in objects
    )


def test_copy_follows_the_server_when_everything_goes_wrong() -> None:
    run_state_machine_as_test(Cluster, settings=settings(max_examples=12, stateful_step_count=40))
