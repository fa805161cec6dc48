"""Reading bodies within the limits, without a running process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import msgspec
import pytest

from kvatlas.routing.bodies import BodyReader, ReadRequest
from kvatlas.routing.policy import RequestPolicy
from kvatlas.routing.refusals import MODEL_NOT_READ, NOT_REWRITTEN
from kvatlas.routing.router import Overload, Refusal, RefusalCode, RoutingRequest
from kvatlas.tokenization.eventual import Known, Later
from kvatlas.tokenization.model import ChatPrompt, NoPrefixReason, NoPrompt, ParsedRequest, Prompt
from kvatlas.tokenization.reading import Reader
from kvatlas.tokenization.requests import cost
from kvatlas.tokenization.requests.parsers import PASSTHROUGH, BodyParser

CHAT = "/v1/chat/completions"
LIMIT = 100_000
"""Of cost; more than a light body can have, and little to exceed."""

MakeReader = Callable[..., BodyReader]


@pytest.fixture
def make_reader() -> Iterator[MakeReader]:
    with ExitStack() as made:

        def make(*, needs_model: bool = False, timeout_s: float = 30.0) -> BodyReader:
            reader = Reader(max_cost=LIMIT, timeout_s=timeout_s)
            made.callback(reader.close)
            return BodyReader(reader, rules=None, needs_model=needs_model)

        yield make


def unread(model: str, body: bytes) -> ReadRequest:
    prompt = Prompt(model=model, tokens=None, n_estimated=-(-len(body) // 4))
    return ReadRequest(None, prompt, overload=Overload.READING)


def chat(content: object, *then: object) -> bytes:
    return msgspec.json.encode({"messages": [{"role": "user", "content": content}, *then], "model": "m"})


def parts(n: int) -> list[object]:
    return [{"type": "text", "text": "a"}] * n


WITHIN = LIMIT // (cost.CONTAINER + 2) - 10
BEYOND = WITHIN + 20


async def read(reader: BodyReader, body: bytes, **headers: str) -> ReadRequest | Refusal:
    return await reader.read(RoutingRequest(CHAT, body, headers=headers), RequestPolicy())


async def parsed(reader: BodyReader, body: bytes) -> ParsedRequest:
    found = await read(reader, body)
    assert isinstance(found, ReadRequest)
    assert found.parsed is not None
    return found.parsed


async def test_light_body_is_read_at_once_and_a_long_one_in_the_thread(make_reader: MakeReader) -> None:
    reader = make_reader()

    light = reader.read(RoutingRequest(CHAT, chat("hello")), RequestPolicy())
    heavy = reader.read(RoutingRequest(CHAT, chat(parts(WITHIN))), RequestPolicy())

    assert isinstance(light, Known)
    assert isinstance(heavy, Later)
    read_later = await heavy
    assert isinstance(read_later, ReadRequest)
    assert read_later.parsed is not None
    assert isinstance(read_later.parsed.prompt, ChatPrompt)
    assert read_later.parsed.is_heavy


async def test_body_above_the_limit_is_read_for_its_model_alone(make_reader: MakeReader) -> None:
    found = await parsed(make_reader(), chat(parts(BEYOND)))

    assert found.model == "m"
    assert isinstance(found.prompt, NoPrompt)
    assert found.prompt.reason is NoPrefixReason.TOO_COMPLEX
    assert "tokenization.maxReadingCost" in found.prompt.detail


async def test_long_texts_count_little(make_reader: MakeReader) -> None:
    found = await parsed(make_reader(), chat("[{,}]," * 500_000))

    assert isinstance(found.prompt, ChatPrompt)


async def test_tool_arguments_count_as_the_json_that_they_are(make_reader: MakeReader) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": f"[{'[],' * 40_000}[]]"}}
    body = chat("hello", {"role": "assistant", "tool_calls": [call]})

    found = await parsed(make_reader(), body)

    assert isinstance(found.prompt, NoPrompt)
    assert found.prompt.reason is NoPrefixReason.TOO_COMPLEX


async def test_body_above_both_limits_is_not_read_at_all(
    make_reader: MakeReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvatlas.routing.bodies.MAX_UNREAD_BYTES", 2**16)

    body = chat(parts(BEYOND))

    alone = await read(make_reader(), body)
    of_several = await read(make_reader(needs_model=True), body)
    unnamed = await read(make_reader(needs_model=True), body.replace(b'"model"', b'"other"'))

    assert alone == of_several == unread("m", body)
    assert unnamed is MODEL_NOT_READ


async def test_body_above_the_limit_is_not_rewritten(make_reader: MakeReader) -> None:
    header = {"x-llm-d-model-name-rewrite": "other"}

    found = await make_reader().read(
        RoutingRequest(CHAT, chat(parts(BEYOND)), headers=header), RequestPolicy()
    )

    assert found is NOT_REWRITTEN


async def test_body_that_is_not_read_in_time_is_treated_like_one_past_the_intake(
    make_reader: MakeReader,
) -> None:
    body = chat(parts(WITHIN))

    found = await read(make_reader(timeout_s=0.0), body)

    assert found == unread("m", body)


@pytest.mark.parametrize("n", [WITHIN, BEYOND], ids=["within", "beyond"])
async def test_long_body_without_model_is_refused(make_reader: MakeReader, n: int) -> None:
    body = msgspec.json.encode({"messages": [{"role": "user", "content": parts(n)}]})

    found = await read(make_reader(), body)

    assert isinstance(found, Refusal)
    assert found.message == "model not found in request body"


async def test_body_that_the_configuration_has_unread_is_not_rewritten(make_reader: MakeReader) -> None:
    request = RoutingRequest(CHAT, chat("hello"), headers={"x-llm-d-model-name-rewrite": "other"})

    found = await make_reader().read(request, RequestPolicy(BodyParser([PASSTHROUGH])))

    assert isinstance(found, ReadRequest)
    assert (found.rewrite, found.parsed and found.parsed.model) == (None, "")


async def test_path_of_no_parser_is_refused_though_its_body_is_past_a_limit(make_reader: MakeReader) -> None:
    request = RoutingRequest("/v1/x", b"{", overload=Overload.HELD_BYTES)

    found = await make_reader().read(request, RequestPolicy(BodyParser(["openai-parser"])))

    assert isinstance(found, Refusal)
    assert found.code is RefusalCode.BAD_REQUEST


@pytest.mark.parametrize(
    ("body", "model"),
    [
        pytest.param(b'--x\r\nContent-Disposition: form-data; name="file"\r\n\r\n', "", id="upload_in_parts"),
        pytest.param(b'{"model": "ranker", "documents": [', "ranker", id="json"),
    ],
)
@pytest.mark.parametrize("needs_model", [True, False])
async def test_long_body_without_known_prompt_is_within_the_limits(
    make_reader: MakeReader, body: bytes, model: str, *, needs_model: bool
) -> None:
    long = body + b"[,]," * (cost.MAX_UNREAD_BYTES // 4)
    request = RoutingRequest("/v1/audio/transcriptions", long)

    found = await make_reader(needs_model=needs_model).read(request, RequestPolicy())

    prompt = NoPrompt(NoPrefixReason.UNKNOWN_PATH, "the path does not belong to a known API")
    assert found == ReadRequest(ParsedRequest(model, prompt, is_heavy=True))
