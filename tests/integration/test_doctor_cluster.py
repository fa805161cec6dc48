"""The doctor's check of a cluster: a running process with an API server that has or refuses the objects."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.api_server import ApiServerDouble
from support.cluster import PODS, POOLS, access, pod, pool
from support.local_process import local_process
from support.waiting import until


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
        pytest.param(pods_forbidden, "fail", "pods: not followed; failures: http_status", "a Role", id="pods_forbidden"),
        pytest.param(all_forbidden, "fail", "inferencepools: not followed; failures: http_status", "a Role", id="all_forbidden"),
        pytest.param(nothing, "fail", "there is no InferencePool mine", "--pool-name", id="no_pool"),
        pytest.param(other_labels, "fail", "no pod has the labels", "selector", id="other_labels"),
        pytest.param(none_ready, "fail", "none of 1 pods serves", "Ready", id="none_ready"),
    ],
)  # fmt: skip
async def test_reason_is_reported_when_no_server_is_found(
    arrange: Callable[[ApiServerDouble], None], state: str, evidence: str, remedy: str, tmp_path: Path
) -> None:
    double = ApiServerDouble()
    await double.start()
    arrange(double)
    kubernetes = {"inferencePool": "mine", "namespace": "ns"}
    access(double, tmp_path)
    kubernetes["kubeconfig"] = str(tmp_path / "kubeconfig")
    try:
        async with local_process(endpoints={"kubernetes": kubernetes}) as process:

            async def is_reported() -> bool:
                found = (await process.checks())["cluster-followed"]
                (line,) = found["evidence"]
                return (
                    found["state"] == state
                    and line.startswith(evidence)
                    and remedy in "".join(found["remedies"])
                )

            await until(is_reported, what=evidence)
    finally:
        await double.stop()


async def test_cluster_is_not_checked_when_endpoints_are_configured() -> None:
    async with local_process() as process:
        assert (await process.checks())["cluster-followed"]["evidence"] == [
            "endpoints are not looked for in a cluster"
        ]
