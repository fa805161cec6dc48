"""The number of tokens where a prompt's token ids are missing: an estimate, everywhere a number is asked for, and marked."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from kvatlas.fleet.audit_request import audit_request
from kvatlas.routing.policy import Policy
from kvatlas.routing.router import Overload, Route, RoutingRequest
from kvatlas.scorers.context_length import ContextLengthFilter
from kvatlas.scorers.core.max_score import MaxScorePicker
from kvatlas.scorers.core.profile import Profile
from kvatlas.scorers.token_load import TokenLoadScorer
from kvatlas.tokenization.encoding.encoding_pool import EncodingPool
from kvatlas.tokenization.encoding.tokenizer import load_tokenizer
from kvatlas.tokenization.pipeline import PromptPipeline
from support.picker_parts import PickerParts, picker_parts
from support.protobuf import content, frame, number, tokenized

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
GRPC = "/vllm.grpc.engine.VllmEngine/Generate"
VERTEX = "/google.cloud.aiplatform.v1.PredictionService/ChatCompletions"
LONG = "the quick brown fox jumps over the lazy dog " * 250
LABEL = "llm-d.ai/context-length-range"


@pytest.fixture
async def parts() -> AsyncGenerator[PickerParts]:
    """Two endpoints, `long` for prompts from 1,000 tokens on and `short` for others, and the load by tokens."""
    async with picker_parts({"long": 0, "short": 0}) as made:
        made.fleet.relabel("long", {LABEL: "1000-200000"})
        made.fleet.relabel("short", {LABEL: "0-999"})
        profile = Profile(
            [("load", TokenLoadScorer(1_000_000), 1.0)],
            MaxScorePicker(),
            [("length", ContextLengthFilter(LABEL, enabled=True))],
        )
        made.picker.use(Policy(1, profile))
        yield made


def asked(path: str, **fields: Any) -> RoutingRequest:
    return RoutingRequest(path=path, body=json.dumps({"model": "m", **fields}).encode())


async def routed(parts: PickerParts, request: RoutingRequest) -> Route:
    route = await parts.picker.route(request)
    assert isinstance(route, Route)
    return route


def message(content: bytes) -> RoutingRequest:
    """Return a request of vLLM's gRPC service."""
    return RoutingRequest(path=GRPC, body=frame(content))


IDS = range(3000)
USER = {"role": "user", "content": LONG}
IMAGE = {"type": "image_url", "image_url": {"url": "http://x/1.png"}}
N_LONG = len(LONG) // 4
NEW = " ".join(map(str, range(60_000)))


@pytest.mark.parametrize(
    ("request_", "n_tokens"),
    [
        pytest.param(asked(TEXT, prompt=LONG), N_LONG, id="text"),
        pytest.param(asked(TEXT, prompt="hello"), 2, id="short"),
        pytest.param(asked(CHAT, messages=[USER]), N_LONG + 1, id="chat"),
        pytest.param(asked(CHAT, messages=[{"role": "user", "content": [IMAGE]}]), 226, id="image"),
        pytest.param(asked(TEXT, prompt=LONG, truncate_prompt_tokens=7), 7, id="truncated"),
        pytest.param(asked(TEXT, prompt=LONG, suffix="x"), (len(LONG) + 44) // 4, id="not_read_whole_body"),
        pytest.param(asked("/v1/chat/completions/render", messages=[USER]), 0, id="nothing_computed"),
        pytest.param(asked("/v1/unknown", prompt=LONG), 0, id="unknown_path"),
        pytest.param(message(tokenized(*IDS) + content(4, number(23, 0))), 3000, id="message_with_all_computed"),
        pytest.param(message(tokenized(*IDS) + content(4, number(27, 9))), 3000, id="message_to_truncate"),
        pytest.param(message(tokenized(*IDS) + content(10, b"")), 3000, id="message_with_media"),
        pytest.param(message(content(3, LONG.encode()) + content(10, b"")), N_LONG, id="message_with_text_and_media"),
        pytest.param(RoutingRequest(GRPC, frame(bytes(395), flag=1)), 100, id="compressed_message"),
        pytest.param(RoutingRequest(VERTEX, frame(bytes(395), flag=1)), 100, id="compressed_body"),
        pytest.param(
            RoutingRequest(TEXT, b'{"model": "m", "pro', headers={"content-length": "40000"}, overload=Overload.HELD_BYTES),
            10_000, id="beginning_of_a_body",
        ),
        pytest.param(
            RoutingRequest(TEXT, b'{"model": "m"}', headers={"content-length": "many"}, overload=Overload.HELD_BYTES),
            4, id="no_length",
        ),
        pytest.param(
            RoutingRequest("/v1/unknown", headers={"content-length": "40000"}, overload=Overload.HELD_BYTES),
            0, id="beginning_of_an_unknown_body",
        ),
    ],
)  # fmt: skip
async def test_tokens_are_estimated_and_marked_when_there_is_no_tokenizer(
    parts: PickerParts, request_: RoutingRequest, n_tokens: int
) -> None:
    decision = (await routed(parts, request_)).decision

    assert (decision.n_tokens, decision.is_estimated) == (n_tokens, True)
    assert decision.picked == ("long" if n_tokens >= 1000 else "short",)


async def test_ids_from_the_client_are_counted_and_not_estimated(parts: PickerParts) -> None:
    decision = (await routed(parts, asked(TEXT, prompt=list(range(1200))))).decision

    assert (decision.n_tokens, decision.is_estimated, decision.picked) == (1200, False, ("long",))


@pytest.mark.parametrize(
    "limits", [pytest.param({"timeout_s": 0.0}, id="late"), pytest.param({"queue_chars": 1}, id="busy")]
)
async def test_long_prompt_goes_to_the_server_for_long_ones_when_the_tokenizer_does_not_answer(
    parts: PickerParts, models: dict[str, Path], limits: dict[str, Any]
) -> None:
    with closing(EncodingPool(**limits)) as pool:
        parts.picker.pipeline = PromptPipeline(load_tokenizer(models["vision"]), pool=pool)
        decision = (await routed(parts, asked(TEXT, prompt=NEW))).decision

    assert decision.no_prefix_reason is not None
    assert (decision.picked, decision.is_estimated) == (("long",), True)


async def test_prompt_of_which_only_the_beginning_is_known_is_estimated_as_a_whole(
    parts: PickerParts, models: dict[str, Path]
) -> None:
    parts.picker.pipeline = PromptPipeline(load_tokenizer(models["vision"]))
    content = [{"type": "text", "text": "see"}, IMAGE, {"type": "text", "text": LONG}]
    decision = (await routed(parts, asked(CHAT, messages=[{"role": "user", "content": content}]))).decision

    assert (decision.cut_reason, decision.picked, decision.is_estimated) == ("media", ("long",), True)


async def test_estimated_tokens_are_in_flight_until_the_response_begins(parts: PickerParts) -> None:
    route = await routed(parts, asked(TEXT, prompt=LONG))
    assert parts.fleet.in_flight.of("long").tokens == N_LONG

    assert route.booking is not None
    route.booking.begun()

    assert parts.fleet.in_flight.of("long").tokens == 0


async def test_estimate_is_counted_apart_and_never_audited(parts: PickerParts) -> None:
    await routed(parts, asked(TEXT, prompt=LONG))
    decision = (await routed(parts, asked(TEXT, prompt=LONG))).decision

    def counted(name: str) -> float | None:
        return parts.registry.get_sample_value(f"kvatlas_{name}_total")

    assert counted("estimated_prompt_tokens") == 2 * N_LONG
    assert (counted("prompt_tokens"), counted("usable_prefix_tokens")) == (0, 0)
    assert audit_request(decision, parts.fleet, prompt_tokens=N_LONG, cached_tokens=0) is None
