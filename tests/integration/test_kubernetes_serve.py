"""`kvatlas serve` in a cluster: a real process, real requests to an API server, real event sockets."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path

import pytest

from support.api_server import NEEDED, ApiServerDouble
from support.cluster import PODS, POOLS, access, pod, pool
from support.publishing import stored
from support.recording import player
from support.serve import Served, serving
from support.waiting import until

pytestmark = pytest.mark.slow

LEASES = "/apis/coordination.k8s.io/v1/namespaces/ns/leases"
QUICK = {"leaseDuration": "3s", "renewDeadline": "2s", "retryPeriod": "100ms", "enabled": True}


@pytest.fixture
async def double() -> AsyncIterator[ApiServerDouble]:
    server = ApiServerDouble()
    await server.start()
    server.put(POOLS, "mine", pool())
    server.groups = {"llm-d.ai/v1alpha2": ["inferenceobjectives", "inferencemodelrewrites"]}
    yield server
    await server.stop()


async def addresses(served: Served) -> dict[str, str]:
    rows = await served.get("/v1/endpoints")
    return {row["name"]: row["address"] for row in rows["endpoints"]}


async def test_endpoints_are_the_pools_when_pods_come_and_go(double: ApiServerDouble, tmp_path: Path) -> None:
    double.put(PODS, "a", pod(1))
    async with serving(access(double, tmp_path), tmp_path) as served:

        async def are(wanted: dict[str, str]) -> None:
            async def they_are() -> bool:
                return await addresses(served) == wanted

            await until(they_are, what=f"endpoints {wanted}")

        async def readiness(status: int) -> None:
            async def it_is() -> bool:
                return await served.status("/readyz") == status

            await until(it_is, what=f"/readyz {status}")

        await are({"a-rank-0": "127.0.0.1:9"})
        double.put(PODS, "b", pod(2))
        await are({"a-rank-0": "127.0.0.1:9", "b-rank-0": "127.0.0.2:9"})
        double.put(POOLS, "mine", pool(10))
        await are({"a-rank-0": "127.0.0.1:10", "b-rank-0": "127.0.0.2:10"})
        double.delete(PODS, "a")
        await are({"b-rank-0": "127.0.0.2:10"})
        await served.until_metric('kvatlas_kubernetes_objects{kind="pods"} 1.0')
        double.delete(POOLS, "mine")
        await are({})
        await readiness(503)
        double.put(POOLS, "mine", pool())
        await are({"b-rank-0": "127.0.0.2:9"})
        await readiness(200)


async def test_pod_has_no_old_blocks_when_it_is_recreated_under_its_name(
    double: ApiServerDouble, tmp_path: Path
) -> None:
    async with player() as publisher:
        port = publisher.events.rpartition(":")[2]
        body = pod(1, events_port=port, replay_port="")
        double.put(PODS, "a", body)
        async with serving(access(double, tmp_path), tmp_path) as served:

            async def residencies() -> int:
                rows = (await served.get("/v1/endpoints"))["endpoints"]
                return sum(tier["residencies"] for row in rows for tier in row["tiers"])

            async def holds_blocks() -> bool:
                await publisher.publish(stored(len(publisher.history), range(64)))
                return await residencies() > 0

            async def holds_none() -> bool:
                return await residencies() == 0 and len(await addresses(served)) == 1

            await until(holds_blocks, what="blocks of the pod")
            double.delete(PODS, "a")
            double.put(PODS, "a", body)
            await until(holds_none, what="a clean start")


async def blocks(served: Served) -> dict[str, int]:
    rows = (await served.get("/v1/endpoints"))["endpoints"]
    return {row["name"]: sum(tier["residencies"] for tier in row["tiers"]) for row in rows}


async def test_restart_keeps_the_blocks_of_unchanged_pods(double: ApiServerDouble, tmp_path: Path) -> None:
    """Restart without replay, so that only the snapshot has the blocks; the API server is down at first."""
    file = tmp_path / "kvatlas.snapshot"
    config = access(double, tmp_path) | {"snapshot": {"file": str(file)}}
    async with player() as kept, player() as replaced:
        pods = {
            name: pod(1, events_port=each.events.rpartition(":")[2], replay_port="")
            for name, each in (("kept", kept), ("replaced", replaced))
        }
        for name, body in pods.items():
            double.put(PODS, name, body)
        async with serving(config, tmp_path) as served:

            async def both_have_blocks() -> bool:
                for each in (kept, replaced):
                    await each.publish(stored(len(each.history), range(64)))
                return set((await blocks(served)).values()) == {4}

            await until(both_have_blocks, what="blocks of both pods")
        await double.stop()
        saved = await asyncio.to_thread(file.read_bytes)
        async with serving(config, tmp_path, ready=False) as served:
            await served.until_metric('kvatlas_kubernetes_current{kind="inferencepools"} 0.0')
        assert await asyncio.to_thread(file.read_bytes) == saved
        await double.start()
        double.delete(PODS, "replaced")
        double.put(PODS, "replaced", pods["replaced"])
        async with serving(config, tmp_path, ready=False) as served:
            await served.until_logged(
                "1 endpoint(s) restored with 4 blocks; left out: replaced-rank-0 (another pod has its name)"
            )
            assert await blocks(served) == {"kept-rank-0": 4, "replaced-rank-0": 0}


@contextlib.asynccontextmanager
async def two(double: ApiServerDouble, folder: Path) -> AsyncGenerator[list[Served]]:
    async with contextlib.AsyncExitStack() as stack:
        both: list[Served] = []
        for name in ("one", "other"):
            (folder / name).mkdir()
            config = access(double, folder / name) | {"leaderElection": QUICK}
            both.append(await stack.enter_async_context(serving(config, folder / name, ready=not both)))
        yield both


async def test_other_process_takes_over_when_the_leader_is_terminated(
    double: ApiServerDouble, tmp_path: Path
) -> None:
    double.put(PODS, "a", pod(1))
    async with two(double, tmp_path) as (leader, follower):

        async def follows() -> bool:
            return await addresses(follower) == {"a-rank-0": "127.0.0.1:9"}

        async def leads() -> bool:
            return await follower.status("/readyz") == 200

        await until(follows, what="a warm follower")
        assert [await each.status("/readyz") for each in (leader, follower)] == [200, 503]
        assert (await follower.post("/v1/score", {"model": "m", "token_ids": [1]}))["picked"] == ["a-rank-0"]
        leader.process.send_signal(signal.SIGTERM)
        await until(leads, what="the other to lead")
        assert double.objects(LEASES)["kvatlas-mine"]["spec"]["leaseTransitions"] == 1
        await leader.process.wait()  # a second signal would end it at once
    assert {(verb, path.rpartition("/")[2]) for verb, path in double.requests} == NEEDED


async def test_leader_stays_ready_when_the_api_server_is_gone_and_renews_when_it_returns(
    double: ApiServerDouble, tmp_path: Path
) -> None:
    double.put(PODS, "a", pod(1))
    async with two(double, tmp_path) as (leader, follower):

        async def follows() -> bool:
            return await addresses(follower) == {"a-rank-0": "127.0.0.1:9"}

        async def holds_on() -> bool:
            checks = {check["name"]: check for check in (await leader.get("/v1/doctor"))["checks"]}
            return "leads on without a renewed Lease" in str(checks["leader-elected"]["evidence"])

        await until(follows, what="a warm follower")
        n_lines = len(leader.log)
        await double.stop()
        await until(holds_on, what="the end of the renewed lead")
        assert [await each.status("/readyz") for each in (leader, follower)] == [200, 503]
        assert await addresses(leader) == {"a-rank-0": "127.0.0.1:9"}
        n_renewals = double.requests["update", LEASES]
        await double.start()
        await until(lambda: double.requests["update", LEASES] > n_renewals + 3, what="renewals")
        assert [await each.status("/readyz") for each in (leader, follower)] == [200, 503]
        assert double.objects(LEASES)["kvatlas-mine"]["spec"]["leaseTransitions"] == 0
        assert not any("not ready" in line for line in leader.log[n_lines:])


async def test_flags_of_the_reference_say_which_pool(double: ApiServerDouble, tmp_path: Path) -> None:
    double.put(PODS, "a", pod(1))
    access(double, tmp_path)
    flags = ("--pool-name", "mine", "--pool-namespace=ns", "--kubeconfig", str(tmp_path / "kubeconfig"))
    async with serving(
        {}, tmp_path, *flags, "--zap-encoder", "json", "--v=4", "--tracing=false", "--metrics-endpoint-auth"
    ) as served:
        assert await addresses(served) == {"a-rank-0": "127.0.0.1:9"}
        async with served.session.get(f"http://127.0.0.1:{served.ports['metrics']}/metrics") as answer:
            assert answer.status == 200
    assert any(line.startswith("{") and "listens on" in line for line in served.log), "--zap-encoder"
    assert any("--metrics-endpoint-auth has no effect beside --config" in line for line in served.log)
