"""State machines of a faulty API server and of the discovery that follows it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from random import Random
from typing import Any, Protocol

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvatlas.configs.cluster import KubernetesConfig
from kvatlas.configs.schema import EventsConfig
from kvatlas.fleet.kubernetes.client.access import Access
from kvatlas.fleet.kubernetes.client.api_server import ApiServer
from kvatlas.fleet.kubernetes.client.backoff import Timing
from kvatlas.fleet.kubernetes.discovery import Discovery
from kvatlas.fleet.roster import Wanted
from support.waiting import until

PODS = "/api/v1/namespaces/default/pods"
POOLS = "/apis/inference.networking.k8s.io/v1/namespaces/default/inferencepools"
OBJECTIVES = "/apis/llm-d.ai/v1alpha2/namespaces/default/inferenceobjectives"
OTHERS = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
IPS = st.integers(1, 9)
NAMES = st.sampled_from(["a", "b", "c", "d"])
FAST = Timing(
    first_delay_s=0.002, max_delay_s=0.01, healthy_s=0.1, short_watch_s=0.001, missing_s=60, gone_s=0.01
)


class FollowedServer(Protocol):
    """An API server, real or fake."""

    @property
    def access(self) -> Access:
        """Its address and credentials."""
        ...

    async def start(self) -> None:
        """Listen, on the former port if there was one."""
        ...

    async def stop(self) -> None:
        """Drop every connection and stop listening; the objects stay."""
        ...

    def put(self, collection: str, name: str, body: dict[str, Any]) -> object:
        """Create or replace an object; replacing keeps the uid."""
        ...

    def delete(self, collection: str, name: str) -> None:
        """Remove an object at once."""
        ...

    def objects(self, collection: str) -> Mapping[str, dict[str, Any]]:
        """Return the objects by name."""
        ...

    def heal(self) -> None:
        """Remove all faults."""
        ...


class FaultyServer(RuleBasedStateMachine):
    """An API server with faults, and a task that follows it."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.server = self.make_server()
        self.do(self.server.start())
        self.up = True
        self.client = ApiServer(self.server.access, clock=time.monotonic)
        self.do(self.client.start())
        self.task = self.loop.create_task(self.follow())
        self.let_run()

    def make_server(self) -> FollowedServer:
        """Create the server, not listening yet."""
        raise NotImplementedError

    async def follow(self) -> None:
        """Run the tested task, until cancelled."""
        raise NotImplementedError

    def agrees(self) -> bool:
        """Return whether the followed state equals the server's."""
        raise NotImplementedError

    def do(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    def let_run(self) -> None:
        self.do(asyncio.sleep(0.002))

    @rule()
    def stop_or_start(self) -> None:
        self.do(self.server.stop() if self.up else self.server.start())
        self.up = not self.up

    @rule()
    def settle(self) -> None:
        """Remove the faults, and wait until the copy equals the server's state."""
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


class WholeDiscovery(FaultyServer):
    """Discovery of a pool and its pods while both change."""

    def __init__(self) -> None:
        self.endpoints: Mapping[str, Wanted] = {}
        super().__init__()
        self.put_pool("a", [8000])
        self.put_pod("a", "a", 1, "ready")

    async def follow(self) -> None:
        self.discovery = Discovery(
            KubernetesConfig(inference_pool="pool"),
            EventsConfig(),
            server=self.client,
            namespace="default",
            on_endpoints=self.take,
            timing=FAST,
            clock=time.monotonic,
            rng=Random(1).random,
        )
        await self.discovery.run()

    def take(self, endpoints: Mapping[str, Wanted]) -> None:
        assert endpoints != self.endpoints
        if not self.discovery.pods.copy.synced and self.discovery.has_pool:
            assert endpoints, "the old endpoints went before the pods of a new selector were listed"
        self.endpoints = endpoints

    def agrees(self) -> bool:
        objectives = self.server.objects(OBJECTIVES).items()
        if self.discovery.priorities != {name: each["spec"]["priority"] for name, each in objectives}:
            return False
        pool = self.server.objects(POOLS).get("pool")
        if pool is None:
            return not self.endpoints and not self.discovery.has_pool
        wanted = {
            (f"{name}-rank-{index}", pod["metadata"]["uid"], f"{pod['status']['podIP']}:{port['number']}")
            for name, pod in self.server.objects(PODS).items()
            if pod["metadata"]["labels"] == pool["spec"]["selector"]["matchLabels"] and is_ready(pod)
            for index, port in enumerate(pool["spec"]["targetPorts"])
        }
        known = {(name, each.uid, str(each.addresses.serving)) for name, each in self.endpoints.items()}
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
        """Create another pod under the name of the old one, as a StatefulSet does."""
        self.delete_pod(name)
        self.put_pod(name, "a", ip, "ready")

    @rule(name=NAMES)
    def delete_pod(self, name: str) -> None:
        if name in self.server.objects(PODS):
            self.server.delete(PODS, name)

    @rule(name=NAMES, priority=st.integers(-2, 2))
    def put_or_delete_objective(self, name: str, priority: int) -> None:
        if priority == 0 and name in self.server.objects(OBJECTIVES):
            self.server.delete(OBJECTIVES, name)
        else:
            body = {"spec": {"poolRef": {"name": "pool"}, "priority": priority}}
            self.server.put(OBJECTIVES, name, body)

    @rule(app=st.sampled_from("aab"), ports=st.lists(st.integers(8000, 8002), min_size=1, unique=True))
    def put_pool(self, app: str, ports: list[int]) -> None:
        targets = [{"number": port} for port in ports]
        self.server.put(
            POOLS, "pool", {"spec": {"selector": {"matchLabels": {"app": app}}, "targetPorts": targets}}
        )

    @rule(selector=st.sampled_from("aab"))
    def replace_pool(self, selector: str) -> None:
        """Delete the pool, and create it again after a while."""
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
