"""The doctor's check of a cluster: a running process with an API server that has or refuses the objects."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from support.api_server import ApiServerDouble
from support.cluster import PODS, POOLS, access, pod, pool
from support.local_process import LocalProcess, local_process
from support.waiting import until

OBJECTIVES = "/apis/llm-d.ai/v1alpha2/namespaces/ns/inferenceobjectives"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/ns/leases"
ELECTING: dict[str, Any] = {"leaderElection": {"enabled": True, "retryPeriod": "50ms"}}


@asynccontextmanager
async def api_server() -> AsyncGenerator[ApiServerDouble]:
    double = ApiServerDouble()
    double.groups = {"llm-d.ai/v1alpha2": ["inferenceobjectives", "inferencemodelrewrites"]}
    await double.start()
    try:
        yield double
    finally:
        await double.stop()


def following(double: ApiServerDouble, folder: Path) -> dict[str, Any]:
    """Return the sections of a process that follows the pool `mine`."""
    access(double, folder)
    kubernetes = {"inferencePool": "mine", "namespace": "ns", "kubeconfig": str(folder / "kubeconfig")}
    return {"endpoints": {"kubernetes": kubernetes}}


async def readiness_of(process: LocalProcess) -> str:
    """Return the message of `/readyz`; empty if it is ready."""
    async with process.session.get(f"{process.url}/readyz") as response:
        return "" if response.status == 200 else str((await response.json())["error"]["message"])


def not_ready(number: int) -> dict[str, Any]:
    return pod(number) | {"status": {"podIP": f"127.0.0.{number}", "conditions": []}}


def healthy(double: ApiServerDouble) -> None:
    double.put(POOLS, "mine", pool())
    double.put(PODS, "a", pod(1))


def nothing(_: ApiServerDouble) -> None:
    pass


def pods_forbidden(double: ApiServerDouble) -> None:
    healthy(double)
    double.faults.forbidden = {PODS}


def kind_not_served(double: ApiServerDouble) -> None:
    double.faults.not_served = {POOLS}


def all_forbidden(double: ApiServerDouble) -> None:
    double.faults.forbidden = {PODS, POOLS}


def none_ready(double: ApiServerDouble) -> None:
    double.put(POOLS, "mine", pool())
    double.put(PODS, "a", not_ready(1))


def other_labels(double: ApiServerDouble) -> None:
    double.put(POOLS, "mine", pool())
    double.put(PODS, "a", pod(1) | {"metadata": {"labels": {"app": "another"}}})


@pytest.mark.parametrize(
    ("arrange", "state", "evidence", "remedy"),
    [
        pytest.param(healthy, "ok", "1 pods are followed, and 1 endpoints found", "", id="healthy"),
        pytest.param(pods_forbidden, "fail", "pods: not known: GET /api/v1/namespaces/ns/pods: HTTP status 403",
                     "apiGroups: [''], resources: [pods], verbs: [list, watch]", id="pods_forbidden"),
        pytest.param(all_forbidden, "fail", "inferencepools: not known: GET /apis/inference.networking.k8s.io/v1/",
                     "apiGroups: ['inference.networking.k8s.io'], resources: [inferencepools]", id="all_forbidden"),
        pytest.param(nothing, "fail", "there is no InferencePool mine in namespace ns (inference.networking.k8s.io)",
                     "--pool-name", id="no_pool"),
        pytest.param(kind_not_served, "fail", "inferencepools: not known: GET /apis/inference.networking.k8s.io/v1/",
                     "the CRD of inferencepools in inference.networking.k8s.io", id="no_crd"),
        pytest.param(other_labels, "fail", "no pod has the labels", "selector", id="other_labels"),
        pytest.param(none_ready, "fail", "none of 1 pods serves", "Ready", id="none_ready"),
    ],
)  # fmt: skip
async def test_reason_is_reported_when_no_server_is_found(
    arrange: Callable[[ApiServerDouble], None], state: str, evidence: str, remedy: str, tmp_path: Path
) -> None:
    async with api_server() as double:
        arrange(double)
        async with local_process(**following(double, tmp_path)) as process:

            async def is_reported() -> bool:
                found = (await process.checks())["cluster-followed"]
                (line,) = found["evidence"]
                return (
                    found["state"] == state
                    and line.startswith(evidence)
                    and remedy in "".join(found["remedies"])
                )

            await until(is_reported, what=evidence)


async def test_cluster_is_not_checked_when_endpoints_are_configured() -> None:
    async with local_process() as process:
        assert (await process.checks())["cluster-followed"]["evidence"] == [
            "endpoints are not looked for in a cluster"
        ]


@pytest.mark.parametrize(
    ("collection", "check", "evidence", "remedy"),
    [
        pytest.param(PODS, "cluster-followed", "pods: not up to date: ", "resources: [pods]", id="pods"),
        pytest.param(
            OBJECTIVES, "cluster-followed", "inferenceobjectives: not up to date: ",
            "apiGroups: ['llm-d.ai'], resources: [inferenceobjectives], verbs: [list, watch]", id="objectives",
        ),
        pytest.param(
            LEASES, "leader-elected", "leases: not known: ",
            "apiGroups: ['coordination.k8s.io'], resources: [leases], verbs: [get, create, update]", id="leases",
        ),
    ],
)  # fmt: skip
async def test_right_is_named_when_it_is_taken_away(
    collection: str, check: str, evidence: str, remedy: str, tmp_path: Path
) -> None:
    async with api_server() as double:
        healthy(double)
        sections: dict[str, Any] = following(double, tmp_path) | {
            "leaderElection": {
                "enabled": True,
                "retryPeriod": "50ms",
                "renewDeadline": "1s",
                "leaseDuration": "2s",
            }
        }
        async with local_process(**sections) as process:
            await process.until_state("cluster-followed", "ok")
            await process.until_state("leader-elected", "ok")
            await until(lambda: double.requests["watch", OBJECTIVES], what="objectives to be followed")
            double.faults.forbidden = {collection}
            double.break_watches("reset")

            async def is_reported() -> bool:
                found = (await process.checks())[check]
                return (
                    found["state"] == "fail"
                    and any(line.startswith(evidence) and "status 403" in line for line in found["evidence"])
                    and remedy in "".join(found["remedies"])
                )

            await until(is_reported, what=evidence)


async def test_unreachable_server_is_named_when_it_is_away(tmp_path: Path) -> None:
    async with api_server() as double:
        healthy(double)
        async with local_process(**following(double, tmp_path) | ELECTING) as process:
            await process.until_state("cluster-followed", "ok")
            await process.until_state("leader-elected", "ok")
            await double.stop()

            async def is_reported() -> bool:
                checks = await process.checks()
                return all(
                    checks[name]["state"] == "fail" and double.url.partition("//")[2] in str(checks[name])
                    for name in ("cluster-followed", "leader-elected")
                )

            await until(is_reported, what="a failed check")
            found = await process.until_state("leader-elected", "fail")
            assert await readiness_of(process) == ""
    assert found["remedies"] == [
        "the API server, and the way to it: network policies, DNS, proxies, certificates"
    ]


def away(double: ApiServerDouble) -> None:
    double.faults.n_failing = 10**6


def leases_forbidden(double: ApiServerDouble) -> None:
    healthy(double)
    double.faults.forbidden = {LEASES}


def another_leads(double: ApiServerDouble) -> None:
    healthy(double)
    double.put(LEASES, "kvatlas-mine", {"spec": {"holderIdentity": "another", "leaseDurationSeconds": 1000}})


@pytest.mark.parametrize(
    ("arrange", "words"),
    [
        pytest.param(nothing, ("there is no InferencePool mine in namespace ns",), id="no_pool"),
        pytest.param(all_forbidden, ("inferencepools: not known", "status 403"), id="no_right"),
        pytest.param(away, ("inferencepools: not known", "status 500: etcdserver: request timed out"), id="server_away"),
        pytest.param(leases_forbidden, ("no replica leads yet; leases: not known", "status 403"), id="no_right_on_leases"),
        pytest.param(another_leads, ("not ready: another leads",), id="another_leads"),
    ],
)  # fmt: skip
async def test_readyz_names_the_reason(
    arrange: Callable[[ApiServerDouble], None], words: tuple[str, ...], tmp_path: Path
) -> None:
    async with api_server() as double:
        arrange(double)
        async with local_process(**following(double, tmp_path) | ELECTING) as process:

            async def is_reported() -> bool:
                message = await readiness_of(process)
                return all(each in message for each in words) and "event history" not in message

            await until(is_reported, what=str(words))


async def test_mend_names_the_ports_on_which_events_are_expected(tmp_path: Path) -> None:
    async with api_server() as double:
        double.put(POOLS, "mine", pool())
        double.put(PODS, "a", pod(1, events_port="5556", replay_port="5656"))
        async with local_process(**following(double, tmp_path)) as process:
            await process.until_state("cluster-followed", "ok")
            process.age()
            found = await process.until_state("events-heard", "fail")
    (remedy,) = found["remedies"]
    assert '"endpoint": "tcp://*:5556"' in remedy
    assert '"replay_endpoint": "tcp://*:5656"' in remedy
