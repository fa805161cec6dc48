"""`Scorer`, `GetPodScores` and reflection on the ext-proc port, called by the generated client over real gRPC."""

from __future__ import annotations

import asyncio
import json
from array import array
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from kvatlas.api.client import (
    BlockKeys,
    GetPodScoresRequest,
    IndexerServiceStub,
    ScoreRequest,
    ScoreResponse,
    ScorerStub,
    TokenIds,
)
from kvatlas.api.extproc.health import HealthService
from kvatlas.api.extproc.server import ExtProcServer
from kvatlas.api.services.configured import make_services
from kvatlas.api.services.pod_scores import MAX_PODS
from kvatlas.routing.router import Route, RoutingRequest
from support.picker_parts import PickerParts, picker_parts
from support.transports import lack_http2

IDS = list(range(64))
BODY = json.dumps({"model": "m", "prompt": IDS}).encode()
TEXT = "The quick brown fox jumps over the lazy dog, again and again and again. " * 8


@pytest.fixture(params=["http2", "grpc"], autouse=True)
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run every test with the native transport and without it."""
    lack_http2(monkeypatch, None if request.param == "http2" else "libnghttp2-14 is missing")
    carrier: str = request.param
    return carrier


@asynccontextmanager
async def serving(parts: PickerParts) -> AsyncGenerator[grpc.Channel]:
    """Run a server over `parts`; yield a client."""
    server = ExtProcServer(parts.picker, HealthService(ready=True), services=make_services(parts.picker))
    port = await server.start("127.0.0.1", 0)
    try:
        # The generated stubs are typed for blocking channels, which need a thread of their own.
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield channel
    finally:
        await server.stop(0)


async def routed(parts: PickerParts, body: bytes = BODY) -> str:
    """Route a request; return the name of the picked endpoint, which then holds its blocks."""
    route = await parts.picker.route(RoutingRequest("/v1/completions", body))
    assert isinstance(route, Route)
    return route.decision.picked[0]


def by_token_ids(_: PickerParts) -> ScoreRequest:
    return ScoreRequest(model="m", token_ids=TokenIds(ids=IDS))


def by_keys(parts: PickerParts) -> ScoreRequest:
    prefix = parts.fleet.atlas.prefix(array("I", IDS))
    return ScoreRequest(model="m", keys=BlockKeys(keys=prefix.keys(16), block_size=16))


@pytest.mark.parametrize(
    ("asked", "usable"),
    [
        # the engine would compute the last of the 64 tokens again, and so its block
        pytest.param(by_token_ids, 48, id="token_ids"),
        pytest.param(by_keys, 64, id="keys"),
    ],
)
async def test_score_is_the_decision_with_its_reasons(
    asked: Callable[[PickerParts], ScoreRequest], usable: int
) -> None:
    async with picker_parts({"a": 0, "b": 0}) as parts, serving(parts) as channel:
        holder = await routed(parts)

        answer: ScoreResponse = await asyncio.to_thread(ScorerStub(channel).Score, asked(parts))

    assert (answer.model, list(answer.picked), answer.tie, answer.blocks) == ("m", [holder], False, 4)
    scored = {each.name: each for each in answer.endpoints}
    assert set(scored) == {"a", "b"}
    assert (scored[holder].address, scored[holder].trust) == (f"{holder}:80", "dark")
    assert scored[holder].prefix.usable_tokens == usable
    assert dict(scored[holder].prefix.tier_tokens) == {"gpu": 64, "cpu": 0}
    assert [(run.tier, run.blocks) for run in scored[holder].prefix.runs] == [("gpu", 4)]
    parts_of_total = {part.name: part.product for part in scored[holder].scores}
    assert sum(parts_of_total.values()) == pytest.approx(scored[holder].total)
    assert parts_of_total["gpu-prefix-cache-scorer"] == 1.0


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        pytest.param(ScoreRequest(model="m", prompt="Hello"), "no_tokenizer", id="prompt"),
        pytest.param(
            ScoreRequest(model="m", messages='[{"role":"user","content":"Hi"}]'),
            "no_tokenizer",
            id="messages",
        ),
    ],
)
async def test_text_is_scored_by_load_alone_when_there_is_no_tokenizer(
    request_: ScoreRequest, reason: str
) -> None:
    async with picker_parts({"a": 1, "b": 0}) as parts, serving(parts) as channel:
        answer: ScoreResponse = await asyncio.to_thread(ScorerStub(channel).Score, request_)

    assert (list(answer.picked), answer.no_prefix_reason) == (["b"], reason)


@pytest.mark.parametrize(
    ("request_", "code", "text"),
    [
        pytest.param(
            ScoreRequest(model="m"),
            grpc.StatusCode.INVALID_ARGUMENT,
            "invalid request: must have one of prompt, messages and token_ids",
            id="nothing_asked",
        ),
        pytest.param(
            ScoreRequest(messages="[secret"), grpc.StatusCode.INVALID_ARGUMENT, "messages is no JSON", id="no_json"
        ),
        pytest.param(
            ScoreRequest(messages="{}"), grpc.StatusCode.INVALID_ARGUMENT, "invalid request: messages: Expected", id="no_list"
        ),
        pytest.param(
            ScoreRequest(prompt="Hello"), grpc.StatusCode.UNAVAILABLE, "no endpoint is configured", id="no_endpoint"
        ),
    ],
)  # fmt: skip
async def test_error_has_the_reason_when_there_is_no_score(
    request_: ScoreRequest, code: grpc.StatusCode, text: str
) -> None:
    async with picker_parts({}) as parts, serving(parts) as channel:
        with pytest.raises(grpc.RpcError) as error:
            await asyncio.to_thread(ScorerStub(channel).Score, request_)

    failed: Any = error.value
    assert failed.code() == code
    assert text in failed.details()
    assert "secret" not in failed.details()


async def test_pods_are_scored_by_the_prompt_that_they_hold() -> None:
    async with picker_parts({"a": 0, "b": 0}) as parts, serving(parts) as channel:
        holder = await routed(parts, json.dumps({"model": "m", "prompt": TEXT}).encode())
        stub = IndexerServiceStub(channel)

        async def scores(*pods: str, prompt: str = TEXT) -> dict[str, float]:
            request = GetPodScoresRequest(prompt=prompt, model_name="m", pod_identifiers=pods)
            answer = await asyncio.to_thread(stub.GetPodScores, request)
            return {each.pod: each.score for each in answer.scores}

        everywhere = await scores()
        assert set(everywhere) == {holder}
        assert everywhere[holder] >= 1
        names: Sequence[str] = (holder, f"{holder}:80", "nobody")
        assert await scores(*names) == dict.fromkeys(names[:2], everywhere[holder])
        assert await scores(prompt="something else " * 40) == {}
        assert await scores(*["nobody"] * (MAX_PODS - 1), holder) == everywhere
        with pytest.raises(grpc.RpcError, match=f"pod_identifiers: found {MAX_PODS + 1}"):
            await scores(*["nobody"] * MAX_PODS, holder)
        with pytest.raises(grpc.RpcError, match="must have one of prompt"):
            await scores(prompt="")


async def test_reflection_describes_the_services() -> None:
    def described(channel: grpc.Channel) -> tuple[set[str], list[str]]:
        database = ProtoReflectionDescriptorDatabase(channel)
        service = DescriptorPool(database).FindServiceByName("kvatlas.v1.Scorer")
        return set(database.get_services()), [method.name for method in service.methods]

    async with picker_parts({}) as parts, serving(parts) as channel:
        services, methods = await asyncio.to_thread(described, channel)

    assert services == {
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
        "indexer.v1.IndexerService",
        "kvatlas.v1.Scorer",
    }
    assert methods == ["Score"]
