"""The API server's double compared with kube-apiserver: the same state machine, and the chart's rights.

Needs `KVATLAS_APISERVER=/path/to/kube-apiserver` and etcd on PATH.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from kvatlas.fleet.kubernetes.client.access import Access
from kvatlas.fleet.kubernetes.client.api_server import ApiServer
from kvatlas.fleet.kubernetes.client.election import Elector
from kvatlas.fleet.kubernetes.client.errors import RequestFailedError
from kvatlas.fleet.kubernetes.client.lease import LeaseElection, Terms
from kvatlas.fleet.kubernetes.client.reviews import Reviews, Verdict
from support.chart_values import SERVERS, SHAPES
from support.cluster_machine import OBJECTIVES, OTHERS, PODS, POOLS, WholeDiscovery
from support.custom_resources import CUSTOM_RESOURCES, Manifest
from support.manifests import OVERLAYS, helm, kustomize
from support.real_api_server import BINARY, TOKEN, Cable, RealApiServer
from support.waiting import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
]

if not BINARY:
    pytest.skip("KVATLAS_APISERVER names no kube-apiserver", allow_module_level=True)

NEWER: dict[str, int] = {"Deployment": 24, "PodDisruptionBudget": 21, "HealthCheckPolicy": 24}
"""Kinds of the chart -> a minor version that takes all of their fields; an old one takes an empty text for null."""
OLD_POOLS = "/apis/inference.networking.x-k8s.io/v1alpha2/namespaces/default/inferencepools"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@contextmanager
def prepared(folder: Path, *, watch_cache: bool) -> Generator[RealApiServer]:
    """Start a server with the CRDs, and with the chart's account and Role in the namespace `default`."""
    with RealApiServer(folder, watch_cache=watch_cache).running() as server:
        for resource in CUSTOM_RESOURCES:
            server.request("POST", CRDS, resource.definition())
        for manifest in helm(
            {"router": SERVERS | {"epp": {"replicas": 2}}}, release="pool", namespace="default"
        ):
            if manifest["kind"] in ("ServiceAccount", "Role", "RoleBinding"):
                server.request("POST", path_of(manifest), manifest)
        for collection in (
            POOLS,
            OBJECTIVES,
            OBJECTIVES.replace("inferenceobjectives", "inferencemodelrewrites"),
        ):
            wait_for(server, collection)
        yield server


def wait_for(server: RealApiServer, collection: str) -> None:
    """Wait until a kind is served."""
    deadline = time.monotonic() + 30
    while server.ask("GET", collection)[0] != 200:  # also 429, while its storage initializes
        assert time.monotonic() < deadline, f"{collection} is not served"
        time.sleep(0.1)


def path_of(manifest: Manifest) -> str:
    api = manifest["apiVersion"]
    root = f"/apis/{api}" if "/" in api else f"/api/{api}"
    kinds = {each.kind: each.plural for each in CUSTOM_RESOURCES} | {"NetworkPolicy": "networkpolicies"}
    plural = kinds.get(manifest["kind"], manifest["kind"].lower() + "s")
    return f"{root}/namespaces/{manifest['metadata'].get('namespace', 'default')}/{plural}"


def token_of(server: RealApiServer, release: str = "pool") -> str:
    """Return the token that a pod of the chart gets mounted."""
    account = f"/api/v1/namespaces/default/serviceaccounts/{release}-epp/token"
    made = server.request(
        "POST", account, {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    )
    return str(made["status"]["token"])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealApiServer]:
    with prepared(tmp_path_factory.mktemp("cached"), watch_cache=True) as running:
        yield running


@pytest.mark.parametrize(
    "source",
    [
        *(
            pytest.param(lambda shape=shape: helm(SHAPES[shape], namespace="default"), id=shape)
            for shape in SHAPES
        ),
        *(pytest.param(lambda name=name: kustomize(name), id=name) for name in OVERLAYS),
    ],
)
def test_manifests_are_taken(server: RealApiServer, source: Any) -> None:
    for manifest in source():
        if server.minor >= NEWER.get(manifest["kind"], 0):
            server.request("POST", f"{path_of(manifest)}?dryRun=All", manifest)


@pytest.mark.parametrize(
    ("spec", "is_taken"),
    [
        pytest.param({"failureMode": "FailOpen"}, True, id="mode"),
        pytest.param({"failureMode": "FailClosed"}, False, id="mode_as_a_readme_writes_it"),
    ],
)
def test_schema_of_the_double_refuses_the_same_objects_as_the_server(
    server: RealApiServer, spec: Manifest, is_taken: bool
) -> None:
    pool = next(
        each for each in helm({"router": SERVERS}, namespace="default") if each["kind"] == "InferencePool"
    )
    pool["spec"]["endpointPickerRef"] |= spec
    status, _ = server.ask("POST", f"{POOLS}?dryRun=All", pool)
    assert (status < 300) == is_taken


@pytest.mark.parametrize(
    ("path", "status"),
    [
        pytest.param(PODS, 200, id="pods"),
        pytest.param(POOLS, 200, id="pools"),
        pytest.param("/api/v1/namespaces/default/secrets", 403, id="secrets"),
        pytest.param("/api/v1/namespaces/kube-system/pods", 403, id="pods_of_others"),
        pytest.param("/apis/llm-d.ai/v1alpha2", 200, id="discovery"),
    ],
)
def test_account_of_the_chart_has_the_needed_rights_and_no_more(
    server: RealApiServer, path: str, status: int
) -> None:
    assert server.ask("GET", path, token=token_of(server))[0] == status


def test_account_may_follow_a_pool_of_the_group_that_a_flag_names(server: RealApiServer) -> None:
    flags = {"pool-group": "inference.networking.x-k8s.io"}
    values: Manifest = {"router": {"inferencePool": {"existing": "theirs"}, "epp": {"flags": flags}}}
    for manifest in helm(values, release="old", namespace="default"):
        if manifest["kind"] in ("ServiceAccount", "Role", "RoleBinding"):
            server.request("POST", path_of(manifest), manifest)
    wait_for(server, OLD_POOLS)
    assert server.ask("GET", OLD_POOLS, token=token_of(server, "old"))[0] == 200
    assert server.ask("GET", POOLS, token=token_of(server, "old"))[0] == 403


def test_account_of_the_chart_may_use_one_lease(server: RealApiServer) -> None:
    leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
    token = token_of(server)
    assert server.ask("GET", f"{leases}/kvatlas-pool", token=token)[0] in (200, 404)
    assert server.ask("GET", f"{leases}/kvatlas-other", token=token)[0] == 403


def machine_over(
    server: RealApiServer, *, forgets: bool, expired: list[int] | None = None
) -> type[WholeDiscovery]:
    """Return the double's state machine over a real server, which it reads with the chart's account.

    `expired` counts watches that were refused as too old.
    """
    token, n_expired = token_of(server), expired if expired is not None else [0]

    class RealDiscovery(WholeDiscovery):
        def make_server(self) -> Cable:
            self.cable = Cable(server, token)
            for collection in (PODS, POOLS, OBJECTIVES):
                for name in self.cable.objects(collection):
                    self.cable.delete(collection, name)
            return self.cable

        @rule(fault=st.sampled_from(["cut", "stall", "compaction", "another kind changes"]))
        def go_wrong(self, fault: str) -> None:
            match fault:
                case "cut":
                    self.cable.cut()
                case "stall":
                    self.cable.stall()
                case "compaction" if forgets:  # of all revisions that watches have seen
                    self.cable.cut()
                    self.cable.put(OTHERS, "x", {})
                    server.compact()
                case _:
                    self.cable.put(OTHERS, "x", {})

        def teardown(self) -> None:
            super().teardown()
            n_expired[0] += self.discovery.pods.copy.n_failures["expired"]

    return RealDiscovery


QUICK = settings(
    max_examples=10, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def test_copy_equals_the_state_of_a_real_server(server: RealApiServer) -> None:
    run_state_machine_as_test(machine_over(server, forgets=False), settings=QUICK)


def test_copy_equals_the_state_of_a_real_server_when_its_etcd_is_compacted(tmp_path: Path) -> None:
    expired = [0]
    with prepared(tmp_path, watch_cache=False) as server:
        run_state_machine_as_test(machine_over(server, forgets=True, expired=expired), settings=QUICK)
    assert expired[0] > 0


@asynccontextmanager
async def electors(cable: Cable) -> AsyncGenerator[list[tuple[Elector, asyncio.Task[None]]]]:
    """Run two processes that take part in an election; yield the leader first."""
    standing: list[tuple[Elector, asyncio.Task[None]]] = []
    async with AsyncExitStack() as stack:
        for identity in ("a", "b"):
            client = ApiServer(cable.access, clock=time.monotonic)
            await client.start()
            stack.push_async_callback(client.stop)
            terms = Terms(lease_s=3, renew_s=2, retry_s=0.05)
            elector = Elector(
                client,
                namespace="default",
                name="kvatlas-pool",
                election=LeaseElection("kvatlas-pool", identity=identity, terms=terms, rng=lambda: 0.5),
                limit_s=1,
                on_change=lambda: None,
                clock=time.monotonic,
                wall=time.time,
            )
            standing.append((elector, asyncio.create_task(elector.run())))
            stack.push_async_callback(elector.resign)
            stack.push_async_callback(asyncio.wait, [standing[-1][1]])
            stack.callback(standing[-1][1].cancel)
        await until(lambda: any(each.leads for each, _ in standing), what="a leader")
        standing.sort(key=lambda each: not each[0].leads)
        yield standing


@pytest.fixture
async def cable(server: RealApiServer) -> AsyncIterator[Cable]:
    made = Cable(server, token_of(server))
    await made.start()
    yield made
    await made.stop()


async def test_one_leads_and_the_other_takes_over_by_a_real_lease(cable: Cable) -> None:
    async with electors(cable) as ((leader, task), (other, _)):
        assert not other.leads
        task.cancel()
        await asyncio.wait([task])
        await leader.resign()
        await until(lambda: other.leads, what="the other to lead")


async def test_leader_goes_on_alone_when_no_process_reaches_the_server(cable: Cable) -> None:
    async with electors(cable) as ((leader, _), (other, _)):
        await cable.stop()
        await until(lambda: leader.holds_on, what="the end of the renewed lead")
        assert (leader.leads, other.leads) == (True, False)
        await cable.start()
        await until(lambda: not leader.holds_on and other.problem is None, what="answers to both")
        assert (leader.leads, leader.n_changes, other.n_changes) == (True, 1, 0)


async def test_verdicts_about_metrics_are_those_of_a_real_server(server: RealApiServer) -> None:
    account = token_of(server)
    found: list[Verdict | int | None] = []
    for own in (TOKEN, account):
        ca = server.ca.cert_pem.bytes().decode()
        client = ApiServer(Access(f"https://127.0.0.1:{server.port}", ca=ca, token=own), clock=time.monotonic)
        await client.start()
        reviews = Reviews(client, clock=time.monotonic)
        for token in (TOKEN, account, "wrong"):
            try:
                found.append(await reviews.may_read(token, "/metrics"))
            except RequestFailedError as error:
                found.append(error.failure.status)
        await client.stop()
    assert found == [Verdict.ALLOWED, Verdict.FORBIDDEN, Verdict.UNKNOWN_CALLER, 403, 403, 403]


async def test_discovery_continues_when_the_server_is_killed_and_restarted(tmp_path: Path) -> None:
    with prepared(tmp_path, watch_cache=True) as server:
        await asyncio.to_thread(_restart_under, machine_over(server, forgets=False), server)


def _restart_under(machine: type[WholeDiscovery], server: RealApiServer) -> None:
    following = machine()
    try:
        following.put_pod("b", "a", 2, "ready")
        following.settle()
        server.kill()
        for _ in range(50):
            following.let_run()
        assert len(following.endpoints) == 2
        server.start()
        following.delete_pod("b")
        following.settle()
    finally:
        following.teardown()
