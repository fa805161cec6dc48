"""Parsers by name: which paths they take, and what the others get."""

from __future__ import annotations

import json
from array import array

import pytest

from kvatlas.tokenization.errors import BodyFormatError
from kvatlas.tokenization.model import ChatPrompt, NoPrefixReason, NoPrompt, TextPrompt, TokenPrompt
from kvatlas.tokenization.requests.parsers import PASSTHROUGH, BodyParser, Form
from support.protobuf import content, frame, tokenized

VLLM = "/vllm.grpc.engine.VllmEngine/"
VERTEX = "/google.cloud.aiplatform.v1beta1.PredictionService/"
CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("types", "path", "form"),
    [
        pytest.param((), CHAT, Form.JSON, id="all_json"),
        pytest.param((), "/v1/unknown", Form.JSON, id="all_unknown"),
        pytest.param((), f"{VLLM}Generate", Form.MESSAGE, id="all_grpc"),
        pytest.param(("openai-parser",), f"{CHAT}?api-version=1", Form.JSON, id="openai"),
        pytest.param(("openai-parser",), "/v1/chat/completions/render", Form.JSON, id="openai_render"),
        pytest.param(("openai-parser",), "/v1/messages", Form.REFUSED, id="openai_is_not_anthropic"),
        pytest.param(("openai-parser",), f"{VLLM}Generate", Form.REFUSED, id="openai_is_not_grpc"),
        pytest.param(("anthropic-parser",), "/v1/messages/count_tokens", Form.JSON, id="anthropic"),
        pytest.param(("vllmhttp-parser",), "/inference/v1/generate", Form.JSON, id="vllmhttp"),
        pytest.param(("vllmhttp-parser",), CHAT, Form.JSON, id="vllmhttp_reads_openai"),
        pytest.param(("sglanghttp-parser",), "/generate", Form.JSON, id="sglang"),
        pytest.param(("vllmgrpc-parser",), f"{VLLM}Embed", Form.MESSAGE, id="embed"),
        pytest.param(("vllmgrpc-parser",), f"{VLLM}Abort", Form.UNREAD, id="other_method"),
        pytest.param(("vllmgrpc-parser",), CHAT, Form.REFUSED, id="grpc_is_not_openai"),
        pytest.param(("vertexai-parser",), f"{VERTEX}ChatCompletions", Form.WRAPPED, id="vertex"),
        pytest.param(("vertexai-parser",), f"{VERTEX}Predict", Form.UNREAD, id="other_vertex_method"),
        pytest.param((PASSTHROUGH,), CHAT, Form.UNREAD, id="passthrough"),
        pytest.param(("openai-parser", PASSTHROUGH), CHAT, Form.JSON, id="before_passthrough"),
        pytest.param(("openai-parser", PASSTHROUGH), "/v1/x", Form.UNREAD, id="rest_to_passthrough"),
    ],
)
def test_path_decides_how_a_body_is_read(types: tuple[str, ...], path: str, form: Form) -> None:
    assert BodyParser(types).form(path) is form


def test_path_of_no_parser_is_refused_with_its_beginning() -> None:
    with pytest.raises(BodyFormatError) as refused:
        BodyParser(["openai-parser"]).parse("/v1/unknown?key=secret", b"{}")
    assert str(refused.value) == "no parser registered matching path suffix for: /v1/unknown"
    with pytest.raises(BodyFormatError) as long:
        BodyParser(["openai-parser"]).parse("/" + "x" * 60_000, b"{}")
    assert len(str(long.value)) < 400


def test_body_of_any_format_has_no_model_and_no_prompt() -> None:
    request = BodyParser([PASSTHROUGH]).parse(CHAT, b"\x00 no JSON")
    assert isinstance(request.prompt, NoPrompt)
    assert (request.model, request.prompt.reason) == ("", NoPrefixReason.UNREAD)


def test_grpc_message_gives_the_ids() -> None:
    assert BodyParser().parse(f"{VLLM}Embed", frame(tokenized(7, 8))).prompt == TokenPrompt(
        array("I", (7, 8))
    )


def test_json_inside_of_a_message_is_read_as_by_its_own_path() -> None:
    parser = BodyParser(["vertexai-parser"])

    def wrapped(body: object) -> bytes:
        return frame(content(1, b"e") + content(2, content(1, b"t") + content(2, json.dumps(body).encode())))

    chat = parser.parse(
        f"{VERTEX}ChatCompletions", wrapped({"model": "m", "messages": [{"role": "user", "content": "hi"}]})
    )
    raw = parser.parse(f"{VERTEX}RawPredict", wrapped({"model": "m", "input": "hi"}))
    assert (chat.model, type(chat.prompt)) == ("m", ChatPrompt)
    assert (raw.model, type(raw.prompt)) == ("m", ChatPrompt)
    with pytest.raises(BodyFormatError, match=r"^ChatCompletionsRequest has no HttpBody"):
        parser.parse(f"{VERTEX}ChatCompletions", frame(content(1, b"e")))
    with pytest.raises(BodyFormatError, match=r"^invalid or unsupported gRPC payload: "):
        parser.parse(f"{VERTEX}ChatCompletions", b"@")


def test_long_message_is_light_though_it_looks_like_costly_json() -> None:
    body = frame(tokenized(*[0x5B] * 300_000))
    assert BodyParser().is_light(f"{VLLM}Generate", body)
    assert not BodyParser().is_light(CHAT, body)
    assert BodyParser().cost(f"{VLLM}Generate", body) == 0


def test_text_of_a_message_is_encoded_as_of_a_completion() -> None:
    request = BodyParser().parse(f"{VLLM}Generate", frame(content(3, b"hi")))
    assert request.prompt == TextPrompt("hi", add_special_tokens=True)
