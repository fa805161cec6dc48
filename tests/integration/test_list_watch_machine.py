"""A copy of a collection beside a real HTTP server that restarts, forgets, refuses, stalls and cuts.

At every moment the copy is a state that the server was in, and never an older one than before; when the faults stop it
is the server's state of now.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from kvatlas.api.kubernetes.access import Access
from kvatlas.api.kubernetes.api_server import ApiServer
from kvatlas.api.kubernetes.backoff import Pace
from kvatlas.api.kubernetes.discovery import Discovery
from kvatlas.api.kubernetes.follower import Collection, Follower
from kvatlas.api.kubernetes.list_watch import ListWatch
from kvatlas.api.kubernetes.pods import PodEndpoint
from kvatlas.api.kubernetes.wire import Named
from kvatlas.configs.cluster import KubernetesConfig
from kvatlas.configs.schema import EventsConfig
from support.api_server import ApiServerDouble
from support.waiting import until

PODS = "/api/v1/namespaces/default/pods"
POOLS = "/apis/inference.networking.k8s.io/v1/namespaces/default/inferencepools"
OTHERS = "/api/v1/namespaces/default/leases"
IPS = st.integers(1, 9)
NAMES = st.sampled_from(["a", "b", "c", "d"])
FAST = Pace(first_delay_s=0.002, max_delay_s=0.01, healthy_s=0.1, short_watch_s=0.001, missing_s=60)

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
    "lists are cut": lambda server: setattr(server.faults, "n_cut_lists", 2),
    "401": lambda server: setattr(server.faults, "unauthorized", True),
    "silence": lambda server: setattr(server.faults, "stalled", True),
    "403": lambda server: setattr(server.faults, "forbidden", {PODS, POOLS}),
    "404": lambda server: setattr(server.faults, "not_served", {PODS, POOLS}),
    "byte by byte": lambda server: setattr(server, "piece_bytes", 1),
    "small pages": lambda server: setattr(server, "max_page", 2),
}

State = frozenset[tuple[str, str, str]]
"""(name, uid, resourceVersion) of every object."""


class FaultyServer(RuleBasedStateMachine):
    """An API server, its faults, and a task that follows it."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.server = ApiServerDouble()
        self.do(self.server.start())
        self.up = True
        self.client = ApiServer(Access(self.server.url), clock=time.monotonic)
        self.do(self.client.start())
        self.task = self.loop.create_task(self.follow())
        self.let_run()

    async def follow(self) -> None:
        """What is tested, until cancelled."""
        raise NotImplementedError

    def agrees(self) -> bool:
        """Whether what is known is the server's state."""
        raise NotImplementedError

    def do(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    def let_run(self) -> None:
        self.do(asyncio.sleep(0.002))

    @rule(fault=st.sampled_from(sorted(FAULTS)))
    def go_wrong(self, fault: str) -> None:
        FAULTS[fault](self.server)

    @rule()
    def stop_or_start(self) -> None:
        self.do(self.server.stop() if self.up else self.server.start())
        self.up = not self.up

    @rule()
    def settle(self) -> None:
        """The faults stop; soon the copy is the server's state."""
        if not self.up:
            self.stop_or_start()
        self.server.heal()
        self.do(until(self.agrees, what="what the server has"))

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


class OneCollection(FaultyServer):
    """Pods of one selector, followed."""

    def __init__(self) -> None:
        self.states: list[State] = [frozenset()]
        self.seen = 0
        self.copy = ListWatch(Named, pace=FAST, rng=Random(1).random)
        super().__init__()

    async def follow(self) -> None:
        collection = Collection(PODS, label_selector="app=a")
        await Follower(self.client, collection, self.copy, on_change=self.check, clock=time.monotonic).run()

    def agrees(self) -> bool:
        return state_of(self.copy.objects.values()) == self.states[-1]

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


class WholeDiscovery(FaultyServer):
    """A pool and its pods, followed; both change."""

    def __init__(self) -> None:
        self.told: Mapping[str, PodEndpoint] = {}
        super().__init__()
        self.put_pool("a", [8000])
        self.put_pod("a", "a", 1, "ready")

    async def follow(self) -> None:
        self.discovery = Discovery(
            KubernetesConfig(inference_pool="pool"),
            EventsConfig(),
            server=self.client,
            namespace="default",
            tell=self.tell,
            pace=FAST,
            clock=time.monotonic,
            rng=Random(1).random,
        )
        await self.discovery.run()

    def tell(self, endpoints: Mapping[str, PodEndpoint]) -> None:
        assert endpoints != self.told
        self.told = endpoints

    def agrees(self) -> bool:
        pool = self.server.objects(POOLS).get("pool")
        if pool is None:
            return not self.told and not self.discovery.has_pool
        wanted = {
            (f"{name}-rank-{index}", pod["metadata"]["uid"], f"{pod['status']['podIP']}:{port['number']}")
            for name, pod in self.server.objects(PODS).items()
            if pod["metadata"]["labels"] == pool["spec"]["selector"]["matchLabels"] and is_ready(pod)
            for index, port in enumerate(pool["spec"]["targetPorts"])
        }
        known = {(name, each.uid, each.addresses.serving) for name, each in self.told.items()}
        return known == wanted and self.discovery.synced

    @rule(
        name=NAMES,
        app=st.sampled_from("aaab"),
        ip=IPS,
        state=st.sampled_from(["ready", "ready", "starting", "ending"]),
    )
    def put_pod(self, name: str, app: str, ip: int, state: str) -> None:
        meta = {"labels": {"app": app}} | (
            {"deletionTimestamp": "2026-01-01T00:00:00Z"} if state == "ending" else {}
        )
        conditions = [{"type": "Ready", "status": str(state != "starting")}]
        status = {"podIP": f"10.0.0.{ip}", "conditions": conditions}
        self.server.put(PODS, name, {"metadata": meta, "status": status})

    @rule(name=NAMES, ip=IPS)
    def replace_pod(self, name: str, ip: int) -> None:
        """As a StatefulSet does: another pod under the name of the old one."""
        self.delete_pod(name)
        self.put_pod(name, "a", ip, "ready")

    @rule(name=NAMES)
    def delete_pod(self, name: str) -> None:
        if name in self.server.objects(PODS):
            self.server.delete(PODS, name)

    @rule(app=st.sampled_from("aab"), ports=st.lists(st.integers(8000, 8002), min_size=1, unique=True))
    def put_pool(self, app: str, ports: list[int]) -> None:
        targets = [{"number": port} for port in ports]
        self.server.put(
            POOLS, "pool", {"spec": {"selector": {"matchLabels": {"app": app}}, "targetPorts": targets}}
        )

    @rule(selector=st.sampled_from("aab"))
    def replace_pool(self, selector: str) -> None:
        """Deleted, and made again after a while."""
        self.server.delete(POOLS, "pool")
        self.let_run()
        self.put_pool(selector, [8001])

    @rule()
    def settle_without_pool(self) -> None:
        self.server.delete(POOLS, "pool")
        self.settle()
        self.put_pool("a", [8000, 8001])


def is_ready(pod: dict[str, Any]) -> bool:
    ready = pod["status"]["conditions"][0]["status"] == "True"
    return ready and "deletionTimestamp" not in pod["metadata"]


def named(found: dict[str, Any]) -> Named:
    return msgspec.convert(found, Named)


def state_of(objects: Any) -> State:
    return frozenset(
        (each.metadata.name, each.metadata.uid, each.metadata.resource_version) for each in objects
    )


@pytest.mark.parametrize("machine", [OneCollection, WholeDiscovery])
def test_what_is_known_is_what_the_server_has_when_everything_goes_wrong(machine: type[FaultyServer]) -> None:
    run_state_machine_as_test(machine, settings=settings(max_examples=20, stateful_step_count=40))
