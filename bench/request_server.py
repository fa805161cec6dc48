"""CPU of a running `kvatlas serve` under conversations at a fixed rate.

Use: python -m bench.request_server [--rate 100] [--tokens 100000] [--seconds 10] [--conversations 50] [--chunk-kib 64]

The server follows 8 publishers that hold the conversations' blocks. Requests come over ext-proc as Envoy sends them: full
duplex, the body in chunks, the whole body back. Each request is its conversation with one turn more than last time. They
are sent at their times, whether earlier ones are answered or not. CPU time is the server's own figure.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import statistics
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import grpc.aio
import msgspec

from kvatlas.api.extproc import ext_proc_pb2 as pb
from kvatlas.api.extproc.health import EXT_PROC_SERVICE
from kvatlas.events.model import EngineHash
from kvatlas.sim.kv_events import GPU, BlockStored, EventBatch
from kvatlas.sim.kvatlas_process import KVAtlasProcess
from kvatlas.sim.publisher import Publisher
from kvatlas.tokenization.encoding.tokenizer import ModelTokenizer, load_tokenizer
from kvatlas.tokenization.model import ChatPrompt
from kvatlas.tokenization.requests.request import parse_body

from .conversations import MODEL, Message, conversation, model_folder, next_turn

PATH = "/v1/chat/completions"
BLOCK_SIZE = 16
N_SERVERS = 8
HEADERS = ((":method", "POST"), (":path", PATH), ("content-type", "application/json"))
CONFIG = pb.ProtocolConfiguration(
    request_body_mode=pb.ProcessingMode.FULL_DUPLEX_STREAMED, response_body_mode=pb.ProcessingMode.NONE
)
TURN = 20_000
"""Number of the first added turn; those of the conversations themselves are smaller."""


@dataclass(frozen=True)
class Options:
    """What is sent."""

    rate: float
    n_tokens: int
    seconds: float
    n_conversations: int
    chunk_bytes: int


class Talk:
    """A conversation that gets one turn longer with every body."""

    def __init__(self, n_tokens: int, number: int) -> None:
        self.messages = conversation(n_tokens, number)
        self._number, self._turn = number, TURN
        self._written = f'{{"model": "{MODEL}", "messages": [{_entries(self.messages)}'.encode()

    def body(self) -> bytes:
        """The next request's body."""
        self._written += f", {_entries(next_turn(self._number, self._turn))}".encode()
        self._turn += 1
        return self._written + b"]}"


def _entries(messages: Sequence[Message]) -> str:
    return json.dumps(messages)[1:-1]


class Server:
    """A running kvatlas and the publishers that it follows."""

    def __init__(self, folder: Path, *, n_servers: int = N_SERVERS) -> None:
        self.publishers = [Publisher("kv") for _ in range(n_servers)]
        static = [
            {
                "name": f"server-{i}",
                "address": f"127.0.0.1:{9000 + i}",
                "events": f"tcp://127.0.0.1:{publisher.port}",
                "replay": f"tcp://127.0.0.1:{publisher.replay_port}",
                "metrics": "",
            }
            for i, publisher in enumerate(self.publishers)
        ]
        config = {
            "apiVersion": "kvatlas/v1",
            "kind": "KVAtlasConfig",
            "server": {
                "extProc": "127.0.0.1:0",
                "rest": "127.0.0.1:0",
                "health": "",
                "metrics": "",
            },
            "model": {"names": [MODEL], "tokenizer": str(model_folder())},
            "tokenization": {"timeout": "60s"},
            "endpoints": {"static": static},
        }
        file = folder / "kvatlas.yaml"
        file.write_bytes(msgspec.yaml.encode(config))
        self.process = KVAtlasProcess(file, log=folder / "kvatlas.log")

    @property
    def address(self) -> str:
        """`host:port` of ext-proc; only while it runs."""
        return "{}:{}".format(*self.process.addresses["extProc"])

    @property
    def rest(self) -> str:
        """`http://host:port` of REST; only while it runs."""
        return self.process.rest_url

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """The process and its publishers, running."""
        replays = [asyncio.create_task(publisher.serve_replay()) for publisher in self.publishers]
        try:
            async with self.process:
                yield
        finally:
            for task in replays:
                task.cancel()
            for publisher in self.publishers:
                publisher.close()

    def hold(self, body: bytes, number: int, tokenizer: ModelTokenizer) -> int:
        """Publish that a server has the blocks of a chat; returns how many."""
        prompt = parse_body(PATH, body).prompt
        if not isinstance(prompt, ChatPrompt) or tokenizer.chat is None:
            raise SystemExit("the body is no chat")
        tokens = tokenizer.encode(tokenizer.chat.render(prompt).text, add_special_tokens=False)
        n_blocks = len(tokens) // BLOCK_SIZE
        event = BlockStored(
            block_hashes=tuple(EngineHash(number * 10**6 + block) for block in range(n_blocks)),
            parent_block_hash=None,
            token_ids=tuple(tokens[: n_blocks * BLOCK_SIZE]),
            block_size=BLOCK_SIZE,
            lora_id=None,
            medium=GPU,
            lora_name=None,
        )
        self.publishers[number % len(self.publishers)].publish(EventBatch(time.time(), (event,)))
        return n_blocks


async def bench_server(options: Options) -> None:
    """Prints the server's CPU time and the latencies."""
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder))
        async with (
            server.running(),
            aiohttp.ClientSession(server.rest) as session,
            grpc.aio.insecure_channel(server.address, CHANNEL) as channel,
        ):
            await _measure(server, session, channel, options)


CHANNEL = (("grpc.max_receive_message_length", 2**26), ("grpc.max_send_message_length", 2**26))


async def _measure(
    server: Server, session: aiohttp.ClientSession, channel: grpc.aio.Channel, options: Options
) -> None:
    tokenizer = load_tokenizer(model_folder())
    talks = [Talk(options.n_tokens, number) for number in range(1, options.n_conversations + 1)]
    n_blocks = sum(server.hold(talk.body(), number, tokenizer) for number, talk in enumerate(talks))
    while await metric(session, r"kvatlas_residencies\{.*\}") < n_blocks:  # noqa: ASYNC110 - a counter of another process
        await asyncio.sleep(0.1)
    for talk in talks:
        await ask(channel, talk.body(), options.chunk_bytes)
    names = ("process_cpu_seconds_total", "kvatlas_prompt_tokens_total", "kvatlas_usable_prefix_tokens_total")
    before = [await metric(session, name) for name in names]
    begin = time.perf_counter()
    n_requests = int(options.rate * options.seconds)
    asked: list[asyncio.Task[float]] = []
    for number in range(n_requests):
        await asyncio.sleep(max(0.0, begin + number / options.rate - time.perf_counter()))
        body = talks[number % len(talks)].body()
        asked.append(asyncio.create_task(ask(channel, body, options.chunk_bytes)))
    latencies = sorted(await asyncio.gather(*asked))
    seconds = time.perf_counter() - begin
    after = [await metric(session, name) for name in names]
    cpu, tokens, usable = (new - old for new, old in zip(after, before, strict=True))
    print(
        f"{n_requests} requests of {tokens / n_requests:,.0f} tokens in {seconds:.1f} s ({n_requests / seconds:.0f}/s)"
    )
    print(f"usable prefix: {usable / tokens:.1%}; without prefix: {await metric(session, WITHOUT):.0f}")
    print(f"server: {cpu / seconds:.2f} cores, {cpu / n_requests * 1e3:.2f} ms CPU a request")
    p99 = latencies[int(len(latencies) * 0.99)]
    print(f"latency: p50 {statistics.median(latencies) * 1e3:.1f} ms, p99 {p99 * 1e3:.1f} ms")


WITHOUT = r"kvatlas_prompts_without_prefix_total\{.*\}"


async def ask(channel: grpc.aio.Channel, body: bytes, chunk_bytes: int) -> float:
    """Send one request; returns the seconds until its whole body came back with a destination."""

    async def messages() -> AsyncIterator[bytes]:
        headers = [pb.HeaderValue(key=key, raw_value=value.encode()) for key, value in HEADERS]
        yield pb.ProcessingRequest(
            request_headers=pb.HttpHeaders(headers=pb.HeaderMap(headers=headers)), protocol_config=CONFIG
        ).SerializeToString()
        for start in range(0, len(body), chunk_bytes):
            chunk = pb.HttpBody(
                body=body[start : start + chunk_bytes], end_of_stream=start + chunk_bytes >= len(body)
            )
            yield pb.ProcessingRequest(request_body=chunk).SerializeToString()

    begin = time.perf_counter()
    process: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(
        f"/{EXT_PROC_SERVICE}/Process"
    )
    n_bytes = 0
    async for reply in process(messages()):
        response = pb.ProcessingResponse.FromString(reply)
        if response.WhichOneof("response") == "request_body":
            n_bytes += len(response.request_body.response.body_mutation.streamed_response.body)
        elif response.WhichOneof("response") != "request_headers":
            raise SystemExit(f"the request was answered with {response}")
    if n_bytes != len(body):
        raise SystemExit(f"{n_bytes} of {len(body)} bytes came back")
    return time.perf_counter() - begin


async def metric(session: aiohttp.ClientSession, name: str) -> float:
    """Sum of the series whose names match."""
    async with session.get("/metrics") as answer:
        text = await answer.text()
    return sum(float(value) for value in re.findall(rf"^{name} (\S+)$", text, flags=re.MULTILINE))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", type=float, default=100)
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--conversations", type=int, default=50)
    parser.add_argument("--chunk-kib", type=int, default=64)
    given = parser.parse_args()
    options = Options(given.rate, given.tokens, given.seconds, given.conversations, given.chunk_kib * 1024)
    asyncio.run(bench_server(options))


if __name__ == "__main__":
    main()
