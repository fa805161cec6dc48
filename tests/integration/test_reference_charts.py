"""kvatlas by its image's name in the reference's own charts: each rendering is started, probed, scraped and sent requests."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from urllib.parse import unquote

import aiohttp
import pytest
from grpc import StatusCode
from grpc_health.v1.health_pb2 import HealthCheckResponse

from kvatlas.sim.envoy import EnvoyProcess, find_envoy
from support.api_server import ApiServerDouble
from support.protobuf import content, frame
from support.reference_charts import NAMES, ModelServers, Picker, Rendering, cluster, picking, proxy

pytestmark = pytest.mark.slow

N_REQUESTS = 6
GENERATE = "/vllm.grpc.engine.VllmEngine/Generate"
REVIEWS = {"tokenreviews", "subjectaccessreviews"}


def waits_for(reason: str) -> pytest.MarkDecorator:
    return pytest.mark.xfail(strict=True, reason=f"Everything a reference configuration says: {reason}")


@contextlib.asynccontextmanager
async def pod(name: str, folder: Path) -> AsyncGenerator[tuple[Picker, ModelServers, ApiServerDouble]]:
    """Run one pod of a rendering, and what is around it."""
    rendering = Rendering.read(name)
    async with (
        ModelServers().running() as servers,
        cluster(rendering, servers.port.number) as double,
        picking(rendering, double, folder, servers.port.number) as picker,
    ):
        await picker.until_ready()
        yield picker, servers, double


async def scrape(picker: Picker, token: str | None) -> int:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    url = f"http://127.0.0.1:{picker.ports['metrics']}/metrics"
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as answer:
        return answer.status


def request_of(name: str, prompt: str) -> tuple[str, bytes, str]:
    """Return path, body and content type of a request that the parsers of a rendering read."""
    if name == "gw-grpc":
        return GENERATE, frame(content(3, prompt.encode())), "application/grpc"
    return "/v1/completions", json.dumps({"model": "m", "prompt": prompt}).encode(), "application/json"


async def metrics_are_guarded(picker: Picker, double: ApiServerDouble) -> None:
    double.rights.users = {"reader": {"username": "prometheus"}, "other": {"username": "other"}}
    double.rights.readers = {"prometheus"}
    found = [await scrape(picker, token) for token in (None, "wrong", "other", "reader")]
    allowed = {resource for rule in picker.rendering.data["rules"] for resource in rule.get("resources", ())}
    n_warnings = sum("cannot review their tokens" in line for line in picker.log)
    if "--metrics-endpoint-auth=false" in picker.rendering.data["epp"]["args"]:
        assert (found, n_warnings) == ([200, 200, 200, 200], 0)
    elif allowed >= REVIEWS:
        assert (found, n_warnings) == ([401, 401, 403, 200], 0)
    else:
        assert (found, n_warnings) == ([401, 401, 401, 401], 1)


@pytest.mark.parametrize("name", NAMES)
async def test_rendering_works_with_our_image(name: str, tmp_path: Path) -> None:
    async with (
        pod(name, tmp_path) as (picker, servers, double),
        EnvoyProcess(proxy(picker), binary=find_envoy()) as envoy,
        aiohttp.ClientSession(envoy.gateway_url) as session,
    ):
        assert picker.ports.keys() == {"extProc", "health", "metrics"}
        assert await picker.health(picker.rendering.probe("liveness")) == HealthCheckResponse.SERVING
        for number in range(N_REQUESTS):
            path, body, kind = request_of(name, f"prompt {number}")
            async with session.post(path, data=body, headers={"content-type": kind}) as answer:
                assert answer.status == 200, await answer.text()
        addresses = {f"127.0.0.{number}:{servers.port.number}" for number in (2, 3)}
        assert len(servers.received) == N_REQUESTS
        assert {destination for destination, _ in servers.received} <= addresses
        await metrics_are_guarded(picker, double)
    assert picker.process.returncode == 0


@pytest.mark.parametrize("name", [name for name in NAMES if Rendering.read(name).data["replicas"] > 1])
async def test_only_the_leader_is_ready_when_there_are_replicas(name: str, tmp_path: Path) -> None:
    async with pod(name, tmp_path) as (leader, servers, double):
        port = servers.port.number
        async with picking(leader.rendering, double, tmp_path, port, replica=1) as other:
            probes = ("liveness", "readiness")
            found = [await other.health(other.rendering.probe(probe)) for probe in probes]
    assert found == [HealthCheckResponse.SERVING, HealthCheckResponse.NOT_SERVING]


@pytest.mark.parametrize("name", ["gw-agn", "gw-trt"])
async def test_body_of_any_format_is_routed(name: str, tmp_path: Path) -> None:
    body = b"\x00 no JSON"
    async with (
        pod(name, tmp_path) as (picker, servers, _),
        EnvoyProcess(proxy(picker), binary=find_envoy()) as envoy,
        aiohttp.ClientSession(envoy.gateway_url) as session,
        session.post("/v1/completions", data=body) as answer,
    ):
        assert answer.status == 200
        assert [received for _, received in servers.received] == [body]


async def test_grpc_inference_is_routed_and_its_errors_are_those_of_grpc(tmp_path: Path) -> None:
    path, message, kind = request_of("gw-grpc", "prompt")
    headers = {"content-type": kind}
    async with (
        pod("gw-grpc", tmp_path) as (picker, servers, _),
        EnvoyProcess(proxy(picker), binary=find_envoy()) as envoy,
        aiohttp.ClientSession(envoy.gateway_url) as session,
        session.post(path, data=message, headers=headers) as answer,
        session.post(path, data=frame(b""), headers=headers) as refused,
    ):
        assert answer.status == 200
        ((destination, received),) = servers.received
        assert refused.headers["grpc-status"] == str(StatusCode.INVALID_ARGUMENT.value[0])
        assert "not supported request inputType" in unquote(refused.headers["grpc-message"])
    assert received == message
    assert destination.endswith(f":{servers.port.number}")


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        pytest.param("gw-trace", "--tracing"),
        pytest.param("gw-grpc", "vllmgrpc-parser"),
    ],
)
async def test_setting_of_a_rendering_has_an_effect(name: str, setting: str, tmp_path: Path) -> None:
    async with pod(name, tmp_path) as (picker, _, _):
        assert [line for line in picker.log if "no effect" in line and setting in line] == []
