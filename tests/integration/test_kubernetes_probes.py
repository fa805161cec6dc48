"""The chart's probes, sent to a process that was started with the chart's arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from support.api_server import ApiServerDouble
from support.chart_values import SERVERS
from support.cluster import PODS, POOLS, access, pod, pool
from support.custom_resources import Manifest
from support.manifests import container, helm, only
from support.serve import serving
from support.waiting import until

pytestmark = pytest.mark.slow

NOT_THE_PROCESS = ("--config=", "--grpc-health-port=", "--ha-enable-leader-election=true")
"""Arguments for files and ports of the pod; the election gets shorter times below."""


def flags_of(epp: Manifest) -> list[str]:
    return [each for each in epp["args"] if not each.startswith(NOT_THE_PROCESS)]


@pytest.mark.parametrize("n_replicas", [1, 2], ids=["alone", "elected"])
async def test_probes_report_liveness_and_readiness(n_replicas: int, tmp_path: Path) -> None:
    """Check that the process is alive at once, so that a missing pool restarts nothing, and ready once it can route."""
    values = {"router": SERVERS | {"epp": {"replicas": n_replicas}}}
    epp = container(only(helm(values, release="mine"), "Deployment"), "epp")
    services = {probe: epp[probe]["grpc"]["service"] for probe in epp if probe.endswith("Probe")}
    assert services.keys() == {"startupProbe", "livenessProbe", "readinessProbe"}
    double = ApiServerDouble()
    await double.start()
    kubeconfig = access(double, tmp_path)["endpoints"]["kubernetes"]["kubeconfig"]
    flags = [*flags_of(epp), f"--kubeconfig={tmp_path / kubeconfig}"]
    config: dict[str, Any] = {"leaderElection": {"enabled": n_replicas > 1, "retryPeriod": "100ms"}}
    try:
        async with (
            serving(config, tmp_path, *flags, ready=False) as served,
            grpc.aio.insecure_channel(f"127.0.0.1:{served.ports['health']}") as channel,
        ):
            check: Any = channel.unary_unary(
                "/grpc.health.v1.Health/Check",
                request_serializer=HealthCheckRequest.SerializeToString,
                response_deserializer=HealthCheckResponse.FromString,
            )

            async def serves(service: str) -> bool:
                answer: HealthCheckResponse = await check(HealthCheckRequest(service=service))
                return bool(answer.status == HealthCheckResponse.SERVING)

            async def answers() -> dict[str, bool]:
                return {probe: await serves(service) for probe, service in services.items()}

            async def all_pass() -> bool:
                return all((await answers()).values())

            await until(lambda: double.requests["watch", POOLS], what="a look for the pool")
            assert await answers() == {
                "startupProbe": True, "livenessProbe": True, "readinessProbe": False
            }  # fmt: skip
            assert not await serves("inference-extension")
            double.put(PODS, "a", pod(1))
            double.put(POOLS, "mine", pool())
            await until(all_pass, what="readiness")
            assert await serves("inference-extension") is (n_replicas == 1)  # as in the reference
    finally:
        await double.stop()
