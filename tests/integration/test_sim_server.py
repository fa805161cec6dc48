"""A simulated server over real HTTP and ZMQ."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
import zmq
import zmq.asyncio
from prometheus_client.parser import text_string_to_metric_families

from kvatlas.events.model import BlockStored
from kvatlas.events.wire import WireBatch, decode_batch
from kvatlas.sim.demo_model import MODEL_NAME, write_demo_model
from kvatlas.sim.model_text import TokenizerText
from kvatlas.sim.server import SimServer
from kvatlas.sim.service_times import ServiceTimes
from support.sim_servers import sim_server
from support.waiting import PATIENCE_S

BLOCK = 16
END = b"\xff" * 8


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> TokenizerText:
    folder = tmp_path_factory.mktemp("model")
    write_demo_model(folder)
    return TokenizerText(folder)


@asynccontextmanager
async def serving(
    text: TokenizerText, **config: Any
) -> AsyncGenerator[tuple[SimServer, aiohttp.ClientSession]]:
    async with sim_server(text, **{"gpu_blocks": 64, "cpu_blocks": 64} | config) as at:
        yield at


async def complete(session: aiohttp.ClientSession, tokens: list[int], **fields: Any) -> dict[str, Any]:
    body = {"model": MODEL_NAME, "prompt": tokens, "max_tokens": 2, **fields}
    async with session.post("/v1/completions", json=body) as answer:
        assert answer.status == 200, await answer.text()
        content: dict[str, Any] = await answer.json()
        return content


def cached(answer: dict[str, Any]) -> int:
    tokens: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return tokens


def prompt(n_tokens: int, first: int = 300) -> list[int]:
    return list(range(first, first + n_tokens))


@pytest.mark.parametrize(
    ("n_tokens", "cpu_blocks", "expected"),
    [
        pytest.param(100, 0, 96, id="full_blocks"),
        pytest.param(96, 0, 80, id="all_but_the_last_token"),
        pytest.param(96, 64, 96, id="the_cpu_tier_covers_it_all"),
        pytest.param(10, 0, 0, id="less_than_a_block"),
    ],
)
async def test_second_completion_reports_cached_tokens_by_the_rules(
    text: TokenizerText, n_tokens: int, cpu_blocks: int, expected: int
) -> None:
    async with serving(text, cpu_blocks=cpu_blocks) as (_, session):
        answers = [await complete(session, prompt(n_tokens)) for _ in range(2)]

    assert [cached(answer) for answer in answers] == [0, expected]
    assert answers[0]["choices"] == answers[1]["choices"]
    assert answers[0]["usage"]["total_tokens"] == n_tokens + 2


async def test_salt_and_adapter_share_nothing(text: TokenizerText) -> None:
    async with serving(text, loras=("adapter",)) as (_, session):
        await complete(session, prompt(100))
        others = [
            await complete(session, prompt(100), cache_salt="a"),
            await complete(session, prompt(100), model="adapter"),
        ]

    assert [cached(answer) for answer in others] == [0, 0]


async def test_streamed_chat_is_the_whole_answer_in_pieces(text: TokenizerText) -> None:
    body = {"model": MODEL_NAME, "messages": [{"role": "user", "content": "Mora?"}], "max_tokens": 12}
    streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
    async with serving(text, name="me") as (_, session):
        async with session.post("/v1/chat/completions", json=body) as answer:
            whole = await answer.json()
        async with session.post("/v1/chat/completions", json=streamed) as answer:
            lines = [line async for line in answer.content if line.strip()]
            headers = answer.headers

    assert lines[-1] == b"data: [DONE]\n"
    chunks = [json.loads(line.removeprefix(b"data: ")) for line in lines[:-1]]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    pieces = [chunk["choices"][0]["delta"]["content"] for chunk in chunks[:-1]]
    assert "".join(pieces) == whole["choices"][0]["message"]["content"]
    assert len(pieces) == 13
    assert (chunks[-1]["choices"], chunks[-1]["usage"]) == ([], whole["usage"])
    assert headers["x-served-by"] == "me"
    assert headers["content-type"].startswith("text/event-stream")


async def test_next_turn_reuses_generated_blocks(text: TokenizerText) -> None:
    messages = [{"role": "user", "content": "Mora?"}]
    answers: list[dict[str, Any]] = []
    async with serving(text, cpu_blocks=0) as (_, session):
        for _ in range(2):
            body = {"model": MODEL_NAME, "messages": messages, "max_tokens": 60}
            async with session.post("/v1/chat/completions", json=body) as answer:
                answers.append(await answer.json())
            messages = [*messages, answers[-1]["choices"][0]["message"], {"role": "user", "content": "Vis?"}]

    n_prompt = answers[0]["usage"]["prompt_tokens"]
    computed = n_prompt + 60 - 1  # the last token generated is never computed
    assert cached(answers[1]) == computed // BLOCK * BLOCK > n_prompt


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/v1/completions", b"{", 400, "JSON decode error"),
        ("/v1/completions", b'{"prompt": 5, "model": "kvatlas-demo"}', 400, "prompt"),
        ("/v1/completions", b'{"model": "kvatlas-demo"}', 400, "prompt"),
        ("/v1/completions", b'{"model": "kvatlas-demo", "prompt": []}', 400, "prompt"),
        ("/v1/completions", b'{"model": "kvatlas-demo", "prompt": "a", "max_tokens": 0}', 400, "max_tokens"),
        (
            "/v1/completions",
            b'{"model": "kvatlas-demo", "prompt": "a", "max_tokens": "a"}',
            400,
            "max_tokens",
        ),
        ("/v1/completions", b'{"model": "kvatlas-demo", "prompt": "a", "n": 2}', 400, "n=2"),
        (
            "/v1/completions",
            b'{"model": "kvatlas-demo", "prompt": "a", "max_tokens": 9999}',
            400,
            "maximum context",
        ),
        ("/v1/chat/completions", b'{"model": "kvatlas-demo", "messages": "a"}', 400, ""),
        (
            "/v1/chat/completions",
            b'{"model": "other", "messages": [{"role": "user", "content": "a"}]}',
            404,
            "`other`",
        ),
        ("/tokenize", b"[]", 400, "JSON"),
    ],
)
async def test_bad_request_gets_an_error_in_the_form_of_vllm(
    text: TokenizerText, path: str, body: bytes, status: int, message: str
) -> None:
    async with serving(text) as (_, session), session.post(path, data=body) as answer:
        error = (await answer.json())["error"]

    assert (answer.status, error["code"]) == (status, status)
    assert error["type"] == ("BadRequestError" if status == 400 else "NotFoundError")
    assert message in error["message"]


async def test_tokenize_returns_the_prompt_the_engine_uses(text: TokenizerText) -> None:
    messages = [{"role": "system", "content": "Bren mora."}, {"role": "user", "content": "Vis?"}]
    async with serving(text) as (_, session):
        async with session.post("/tokenize", json={"messages": messages}) as answer:
            rendered = await answer.json()
        async with session.post(
            "/v1/chat/completions", json={"model": MODEL_NAME, "messages": messages}
        ) as answer:
            used = await answer.json()

    assert rendered["count"] == len(rendered["tokens"]) == used["usage"]["prompt_tokens"]
    assert rendered["max_model_len"] == 63 * BLOCK


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Vis?"}]}),
        ("/v1/completions", {"prompt": "Bren mora."}),
    ],
)
async def test_render_returns_the_prompt_the_engine_uses(
    text: TokenizerText, path: str, fields: dict[str, Any]
) -> None:
    body = {"model": MODEL_NAME, "max_tokens": 1, **fields}
    async with serving(text) as (_, session):
        async with session.post(f"{path}/render", json=body) as answer:
            rendered: Any = await answer.json()
        async with session.post(path, json=body) as answer:
            used = await answer.json()
        async with session.post(f"{path}/render", json={**body, "model": "other"}) as answer:
            assert answer.status == 404
    one = rendered if "chat" in path else rendered[0]
    assert len(one["token_ids"]) == used["usage"]["prompt_tokens"]


async def test_models_and_health(text: TokenizerText) -> None:
    async with serving(text, loras=("adapter",)) as (_, session):
        async with session.get("/v1/models") as answer:
            cards = (await answer.json())["data"]
        async with session.get("/health") as answer:
            assert answer.status == 200

    assert [(card["id"], card["parent"]) for card in cards] == [(MODEL_NAME, None), ("adapter", MODEL_NAME)]


async def test_metrics_count_what_was_served(text: TokenizerText) -> None:
    async with serving(text) as (_, session):
        for _ in range(2):
            await complete(session, prompt(100))
        async with session.get("/metrics") as answer:
            families = text_string_to_metric_families(await answer.text())
            samples = {
                (s.name, s.labels.get("source")): s.value for family in families for s in family.samples
            }

    assert samples["vllm:prompt_tokens_cached_by_source_total", "device"] == 96
    assert samples["vllm:prompt_tokens_total", None] == 200
    assert samples["vllm:num_requests_running", None] == 0


async def test_blocks_are_freed_when_the_client_disconnects(text: TokenizerText) -> None:
    slow = ServiceTimes(step_s=0.001)
    async with serving(text, time_scale=1.0, times=slow) as (_, session):
        body = {"model": MODEL_NAME, "prompt": prompt(100), "max_tokens": 900, "stream": True}
        async with session.post("/v1/completions", json=body) as answer:
            await answer.content.readline()
        async with asyncio.timeout(PATIENCE_S):
            while await _metric(session, "vllm:num_requests_running"):
                pass

        assert await _metric(session, "vllm:kv_cache_usage_perc") == 0


async def test_events_arrive_live_and_replay_from_the_start(text: TokenizerText) -> None:
    async with serving(text) as (server, session), _sockets(server) as (subscriber, dealer):
        live = await _live_batches(subscriber, session)
        replayed = await _replay(dealer, 0)

    sequences = [int.from_bytes(frames[2], "big") for frames in replayed]
    assert sequences == list(range(len(sequences)))
    assert [frames[1:] for frames in replayed][-len(live) :] == live
    assert {frames[0] for frames in live} == {f"kv@{server.address}@{MODEL_NAME}".encode()}
    batches = [decode_batch(frames[3]) for frames in replayed]
    assert all(batch.rank == 0 and not batch.rejected for batch in batches)
    stored = _first_store(batches)
    assert (stored.medium, stored.parent, stored.block_size) == ("GPU", None, BLOCK)
    assert stored.tokens.tolist() == prompt(96)


@pytest.mark.parametrize(
    ("request_frames", "first"),
    [
        pytest.param([b"", (1).to_bytes(8, "big")], 1, id="from_the_middle"),
        pytest.param([b"", b"\x01"], 1, id="short_number"),
        pytest.param([b"", b""], 0, id="empty_number"),
        pytest.param([b"", (10**6).to_bytes(8, "big")], None, id="beyond_the_end"),
    ],
)
async def test_replay_starts_at_the_requested_batch(
    text: TokenizerText, request_frames: list[bytes], first: int | None
) -> None:
    async with serving(text) as (server, session), _sockets(server) as (_, dealer):
        for number in range(3):
            await complete(session, prompt(20, first=300 + number))
        await _send(dealer, request_frames)
        sequences = [int.from_bytes(frames[2], "big") for frames in await _until_end(dealer)]

    assert sequences[:1] == ([] if first is None else [first])


@pytest.mark.parametrize("frames", [[b""], [(0).to_bytes(8, "big")], [b"", b"", b"", b""]])
async def test_replay_request_with_other_frames_is_ignored(text: TokenizerText, frames: list[bytes]) -> None:
    async with serving(text) as (server, session), _sockets(server) as (_, dealer):
        await complete(session, prompt(20))
        await _send(dealer, frames)

        assert len(await _replay(dealer, 0)) == 2  # only the reply to the valid request
        assert not await dealer.poll(0)


async def test_restarted_server_is_a_new_life_at_the_same_address(text: TokenizerText) -> None:
    async with serving(text) as (server, session):
        await complete(session, prompt(100))
        ports = server.ports
        await server.stop()
        await server.start()

        assert server.ports == ports
        assert cached(await complete(session, prompt(100))) == 0
        async with _sockets(server) as (_, dealer):
            sequences = [int.from_bytes(frames[2], "big") for frames in await _replay(dealer, 0)]

    assert sequences[0] == 0


async def test_requests_in_a_server_that_stops_fail_at_once(text: TokenizerText) -> None:
    async with serving(text, time_scale=1.0, times=ServiceTimes(step_s=30.0)) as (server, session):
        body = {"model": MODEL_NAME, "prompt": prompt(100), "max_tokens": 9}
        asked = asyncio.create_task(session.post("/v1/completions", json=body))
        async with session.get("/health"):  # the one before it is in the engine
            pass

        async with asyncio.timeout(PATIENCE_S):
            await server.stop()

        with pytest.raises(aiohttp.ServerDisconnectedError):
            await asked


async def test_server_without_events_has_no_addresses_for_them(text: TokenizerText) -> None:
    async with serving(text, kv_events=False) as (server, session):
        await complete(session, prompt(20))

        assert (server.events_address, server.replay_address) == ("", "")


@asynccontextmanager
async def _sockets(server: SimServer) -> AsyncGenerator[tuple[zmq.asyncio.Socket, zmq.asyncio.Socket]]:
    context = zmq.asyncio.Context()
    subscriber, dealer = context.socket(zmq.SUB), context.socket(zmq.DEALER)
    try:
        subscriber.subscribe(b"kv@")
        subscriber.connect(server.events_address)
        dealer.setsockopt(zmq.RCVHWM, 0)
        dealer.connect(server.replay_address)
        yield subscriber, dealer
    finally:
        context.destroy(linger=0)


async def _live_batches(subscriber: zmq.asyncio.Socket, session: aiohttp.ClientSession) -> list[list[bytes]]:
    """Return the batches that a subscriber receives, without those published before its subscription."""
    async with asyncio.timeout(PATIENCE_S):
        first = 300
        while not await subscriber.poll(0):
            await complete(session, prompt(100, first))
            first += 1
        received = [await subscriber.recv_multipart()]
        while await subscriber.poll(50):
            received.append(await subscriber.recv_multipart())
        return received


async def _send(dealer: zmq.asyncio.Socket, frames: list[bytes]) -> None:
    await dealer.send_multipart(frames)  # pyright: ignore[reportUnknownMemberType]  # pyzmq's stub


async def _replay(dealer: zmq.asyncio.Socket, start: int) -> list[list[bytes]]:
    await _send(dealer, [b"", start.to_bytes(8, "big")])
    return await _until_end(dealer)


async def _until_end(dealer: zmq.asyncio.Socket) -> list[list[bytes]]:
    replies: list[list[bytes]] = []
    async with asyncio.timeout(PATIENCE_S):
        while True:
            frames: list[bytes] = await dealer.recv_multipart()
            assert len(frames) == 4
            if frames[2] == END:
                assert frames == [b"", b"", END, b""]
                return replies
            replies.append(frames)


async def _metric(session: aiohttp.ClientSession, name: str) -> float:
    async with session.get("/metrics") as answer:
        families = text_string_to_metric_families(await answer.text())
    (found,) = [sample.value for family in families for sample in family.samples if sample.name == name]
    return found


def _first_store(batches: list[WireBatch]) -> BlockStored:
    return next(event for batch in batches for event in batch.events if isinstance(event, BlockStored))
