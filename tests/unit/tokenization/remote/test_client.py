"""The client against real HTTP servers whose answers the test decides."""

from __future__ import annotations

import asyncio
import json
import logging
from array import array
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from kvatlas.tokenization.encoding.tokenizer import load_tokenizer
from kvatlas.tokenization.model import (
    ChatPrompt,
    NoPrefixReason,
    NoPrompt,
    ParsedRequest,
    TextPrompt,
    TokenPrompt,
)
from kvatlas.tokenization.pipeline import PromptPipeline
from kvatlas.tokenization.remote import client as client_module
from kvatlas.tokenization.remote.client import RemoteOptions, RemoteTokenizer
from kvatlas.tokenization.remote.wire import RemoteApi
from kvatlas.tokenization.requests.request import parse_body

Answer = Callable[[web.Request], Awaitable[web.Response]]
CHAT = "/v1/chat/completions"
DEAD = "http://127.0.0.1:1"


@dataclass
class Clock:
    """Seconds that pass when the test says so."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Asked:
    """A tokenizer under test, with what it told and what its server saw."""

    tokenizer: RemoteTokenizer
    clock: Clock
    outcomes: Counter[str] = field(default_factory=Counter[str])
    bodies: list[Any] = field(default_factory=list[Any])
    headers: list[dict[str, str]] = field(default_factory=list[dict[str, str]])

    async def ask(self, text: str = "hello") -> list[int] | None:
        found = await self.tokenizer.tokenize(text_request(text))
        return None if found is None else list(found.tokens)


def text_request(text: str) -> ParsedRequest:
    return ParsedRequest(model="m", prompt=TextPrompt(text, add_special_tokens=True))


async def tells_length(request: web.Request) -> web.Response:
    """As many ids as the prompt has characters."""
    prompt = (await request.json())["prompt"]
    return web.json_response([{"token_ids": list(range(1, len(prompt) + 1))}])


def status(code: int, body: str = "") -> Answer:
    async def answer(_request: web.Request) -> web.Response:
        return web.Response(status=code, text=body)

    return answer


@asynccontextmanager
async def asking(
    answer: Answer, *more: str, urls: list[str] | None = None, **options: Any
) -> AsyncGenerator[Asked]:
    """Yield a tokenizer that asks a server with these responses, and the servers `more`."""
    clock = Clock()
    asked: Asked

    async def noted(request: web.Request) -> web.Response:
        asked.bodies.append(json.loads(await request.read()))
        asked.headers.append(dict(request.headers))
        return await answer(request)

    app = web.Application()
    app.router.add_post("/{path:.*}", noted)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    targets = [url, *more] if urls is None else urls
    tokenizer = RemoteTokenizer(
        lambda: targets,
        options=replace(RemoteOptions(timeout_s=5.0, failures=2), **options),
        clock=clock,
        on_outcome=lambda outcome, _seconds: asked.outcomes.update([outcome]),
    )
    asked = Asked(tokenizer, clock)
    await tokenizer.start()
    try:
        yield asked
    finally:
        await tokenizer.stop()
        await runner.cleanup()


async def test_ids_are_those_the_engine_tells() -> None:
    async with asking(tells_length, api_key="secret") as asked:
        assert await asked.ask("abc") == [1, 2, 3]
    assert asked.outcomes == {"answered": 1}
    assert asked.bodies == [{"model": "m", "prompt": "abc", "add_special_tokens": True}]
    assert asked.headers[0]["Authorization"] == "Bearer secret"


async def test_engine_is_asked_once_when_requests_have_the_same_prompt() -> None:
    async with asking(tells_length) as asked:
        assert await asked.ask() == await asked.ask()
        assert asked.tokenizer.cached_bytes > 0
        asked.clock.now += client_module.RESPONSE_TTL_S + 1
        assert asked.tokenizer.cached_bytes == 0
        await asked.ask()
    assert asked.outcomes == {"answered": 2, "cached": 1}
    assert len(asked.bodies) == 2


@pytest.mark.parametrize("cache_bytes", [0, 400, 1400])
async def test_answers_are_kept_only_as_far_as_memory_is_given(cache_bytes: int) -> None:
    async with asking(tells_length, cache_bytes=cache_bytes) as asked:
        for text in ("a", "b", "c", "d"):
            assert await asked.ask(text) == [1]
        assert asked.tokenizer.cached_bytes <= cache_bytes
        assert (asked.tokenizer.cached_bytes > 0) == (cache_bytes > 1000)


@pytest.mark.parametrize(
    ("answer", "outcome", "is_open"),
    [
        pytest.param(status(400, "{}"), "refused", False, id="bad_request"),
        pytest.param(status(413), "refused", False, id="too_large_a_request"),
        pytest.param(status(404, '{"error": {"message": "no such model"}}'), "refused", False, id="no_model"),
        pytest.param(status(500), "failed", False, id="server_error"),
        pytest.param(status(404, '{"detail": "Not Found"}'), "unusable", True, id="no_path"),
        pytest.param(status(403, '{"error": {}}'), "unusable", True, id="forbidden"),
        pytest.param(status(503), "unusable", True, id="unavailable"),
        pytest.param(status(302), "unusable", True, id="redirect"),
        pytest.param(status(200, "[]"), "malformed", True, id="malformed"),
        pytest.param(status(200, '{"more": ' + "[" * 100_000), "malformed", True, id="nested_deeply"),
    ],
)
async def test_a_server_is_left_alone_only_when_it_is_its_fault(
    answer: Answer, outcome: str, is_open: bool
) -> None:
    async with asking(answer) as asked:
        assert [await asked.ask(text) for text in "ab"] == [None, None]
        assert asked.outcomes == {outcome: 2}
        assert asked.tokenizer.n_open == is_open
        await asked.ask("c")
    assert asked.outcomes["unavailable"] == is_open
    assert len(asked.bodies) == 2 + (not is_open)


async def test_log_says_once_what_to_do_when_the_engine_does_not_render(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO):
        async with asking(status(403)) as asked:
            for text in "abcd":
                await asked.ask(text)
    (message,) = [record.getMessage() for record in caplog.records if "token ids" in record.getMessage()]
    assert "--enable-scale-out" in message


async def test_a_server_is_asked_again_when_it_came_back(caplog: pytest.LogCaptureFixture) -> None:
    current = [status(503)]

    async def answer(request: web.Request) -> web.Response:
        return await current[0](request)

    async with asking(answer, cooldown_s=7.0) as asked:
        await asked.ask("a")
        await asked.ask("b")
        current[0] = tells_length
        assert await asked.ask("c") is None
        asked.clock.now += 7
        with caplog.at_level(logging.INFO):
            assert await asked.ask("d") == [1]
        assert (asked.tokenizer.n_open, await asked.ask("e")) == (0, [1])
    assert sum("returns token ids again" in record.getMessage() for record in caplog.records) == 1


async def test_another_server_is_asked_when_one_is_gone() -> None:
    async with asking(tells_length, DEAD) as asked:
        assert [await asked.ask(text) for text in "abcdef"] == [[1]] * 6
        assert asked.outcomes == {"answered": 6}
        assert asked.tokenizer.n_open == 1


@pytest.mark.parametrize(
    ("urls", "outcome"),
    [
        pytest.param([DEAD], "unreachable", id="dead"),
        pytest.param(["http://bad_host.invalid.:1"], "unreachable", id="unknown_host"),
        pytest.param([], "unavailable", id="no_server"),
    ],
)
async def test_there_are_no_ids_when_no_server_answers(urls: list[str], outcome: str) -> None:
    async with asking(tells_length, urls=urls) as asked:
        assert await asked.ask() is None
    assert asked.outcomes == {outcome: 1}


async def test_servers_take_turns() -> None:
    async with asking(tells_length) as one, asking(tells_length) as other:
        both = [target for each in (one, other) for target in each.tokenizer.targets()]
        async with asking(tells_length, urls=both) as asked:
            for text in "abcdef":
                assert await asked.ask(text) == [1]
        assert (len(one.bodies), len(other.bodies)) == (3, 3)


async def test_request_waits_no_longer_than_it_may_when_the_server_is_slow() -> None:
    release = asyncio.Event()

    async def slow(request: web.Request) -> web.Response:
        await release.wait()
        return await tells_length(request)

    async with asking(slow, timeout_s=0.05) as asked:
        assert await asked.ask("a") is None
        assert await asked.ask("b") is None
        assert asked.outcomes == {"timeout": 2}
        assert asked.tokenizer.n_open == 1
        release.set()


async def test_next_request_is_the_probe_when_the_one_before_was_cancelled() -> None:
    reached, release = asyncio.Event(), asyncio.Event()
    current = [status(503)]

    async def hangs(request: web.Request) -> web.Response:
        reached.set()
        await release.wait()
        return await tells_length(request)

    async def answer(request: web.Request) -> web.Response:
        return await current[0](request)

    async with asking(answer, failures=1, cooldown_s=7.0) as asked:
        await asked.ask("a")
        current[0] = hangs
        asked.clock.now += 7
        probe = asyncio.create_task(asked.ask("b"))
        await reached.wait()
        probe.cancel()
        with pytest.raises(asyncio.CancelledError):
            await probe
        current[0] = tells_length
        assert await asked.ask("c") == [1]
        release.set()
    assert asked.outcomes == {"unusable": 1, "abandoned": 1, "answered": 1}


async def test_a_server_may_leave_while_it_is_asked() -> None:
    targets = [DEAD]
    reached, release = asyncio.Event(), asyncio.Event()

    async def leaves(_request: web.Request) -> web.Response:
        reached.set()
        await release.wait()
        return web.Response(status=503)

    async with asking(leaves) as other, asking(tells_length, urls=targets) as asked:
        targets[:] = other.tokenizer.targets()
        waiting = asyncio.create_task(asked.ask("a"))
        await reached.wait()
        targets.clear()
        assert await asked.ask("b") is None
        release.set()
        assert await waiting is None
    assert asked.outcomes == {"unavailable": 1, "unusable": 1}


async def test_the_second_server_may_leave_while_the_first_is_asked() -> None:
    targets: list[str] = []
    reached, release = asyncio.Event(), asyncio.Event()

    async def fails(_request: web.Request) -> web.Response:
        reached.set()
        await release.wait()
        return web.Response(status=503)

    async with asking(fails) as first, asking(tells_length) as second, asking(fails, urls=targets) as asked:
        targets += [*second.tokenizer.targets(), *first.tokenizer.targets()]
        waiting = asyncio.create_task(asked.ask("a"))
        await reached.wait()
        targets.clear()
        assert await asked.ask("b") is None
        release.set()
        assert await waiting == [1]
    assert asked.outcomes == {"unavailable": 1, "answered": 1}


async def test_nothing_is_counted_when_the_engines_api_cannot_tell() -> None:
    async with asking(tells_length) as asked:
        assert await asked.tokenizer.tokenize(parse_body("/generate", b'{"input_ids": [1]}')) is None
    assert not asked.outcomes


async def test_answer_is_not_read_to_its_end_when_it_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "MAX_RESPONSE_BYTES", 100)
    async with asking(status(200, "x" * 1000)) as asked:
        assert await asked.ask() is None
    assert asked.outcomes == {"too_large": 1}


async def test_nothing_is_asked_when_it_was_stopped() -> None:
    async with asking(tells_length) as asked:
        await asked.tokenizer.stop()
        assert await asked.ask() is None
    assert asked.outcomes == {"unreachable": 1}


IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}


async def tells_one(_request: web.Request) -> web.Response:
    return web.json_response({"token_ids": [1]})


@pytest.mark.parametrize(
    ("answer", "told"),
    [pytest.param(tells_one, True, id="told"), pytest.param(status(503), False, id="not_told")],
)
async def test_ids_of_a_chat_with_media_are_those_before_them_when_no_engine_tells_all(
    models: dict[str, Path], answer: Answer, told: bool
) -> None:
    tokenizer = load_tokenizer(models["vision"])
    messages = [{"role": "user", "content": [{"type": "text", "text": "look"}, IMAGE]}]
    body = json.dumps({"model": "m", "messages": messages}).encode()
    known = await PromptPipeline(tokenizer).prompt(CHAT, body)
    async with asking(answer, media=True) as asked:
        prompt = await PromptPipeline(tokenizer, remote=asked.tokenizer).prompt(CHAT, body)
    assert known.tokens
    assert (prompt.tokens, prompt.cut) == ((array("I", [1]), None) if told else (known.tokens, known.cut))


async def test_nobody_is_asked_when_ids_can_be_computed_here(models: dict[str, Path]) -> None:
    async with asking(status(503)) as asked:
        pipeline = PromptPipeline(load_tokenizer(models["tiny"]), remote=asked.tokenizer)
        prompt = await pipeline.tokenize(text_request("hello"))
    assert (prompt.tokens, asked.outcomes) == (array("I", [418]), {})


@pytest.mark.parametrize(("media", "n_asked"), [(False, 0), (True, 1)])
async def test_engine_is_asked_about_media_only_when_told_so(media: bool, n_asked: int) -> None:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": [IMAGE]}]}).encode()
    request = parse_body(CHAT, body)
    assert isinstance(request.prompt, ChatPrompt)
    async with asking(tells_one, media=media) as asked:
        found = await asked.tokenizer.tokenize(request)
    assert found == (TokenPrompt(array("I", [1])) if media else None)
    assert (len(asked.bodies), asked.outcomes["answered"]) == (n_asked, n_asked)


@pytest.mark.parametrize(
    ("prompt", "may_help"),
    [
        pytest.param(NoPrompt(NoPrefixReason.NO_TOKENIZER, ""), True, id="no_tokenizer"),
        pytest.param(NoPrompt(NoPrefixReason.OWN_RENDERER, ""), True, id="own_renderer"),
        pytest.param(NoPrompt(NoPrefixReason.MALFORMED, ""), False, id="malformed"),
        pytest.param(NoPrompt(NoPrefixReason.STORED_HISTORY, ""), False, id="stored_history"),
        pytest.param(TokenPrompt(array("I")), False, id="ids"),
        pytest.param(TextPrompt("a", add_special_tokens=False), False, id="text"),
        pytest.param(TextPrompt("a", add_special_tokens=False, fork="b"), True, id="text_with_media"),
    ],
)
async def test_engine_may_help_where_the_reason_lies_here(
    prompt: TextPrompt | TokenPrompt | NoPrompt, may_help: bool
) -> None:
    async with asking(tells_length, api=RemoteApi.TOKENIZE) as asked:
        assert asked.tokenizer.may_help(prompt) is may_help
