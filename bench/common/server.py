"""A running kvatlas with publishers to follow, and a gateway's requests to it."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

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
"""Number of the first added turn; the turns that the conversation begins with have smaller ones."""


class GrowingChat:
    """A conversation that gets one turn longer with every request."""

    def __init__(self, n_tokens: int, number: int) -> None:
        self.messages = conversation(n_tokens, number)
        self._number, self._turn = number, TURN
        self._written = f'{{"model": "{MODEL}", "messages": [{_entries(self.messages)}'.encode()

    def body(self) -> bytes:
        """Return the body of the next request."""
        self._written += f", {_entries(next_turn(self._number, self._turn))}".encode()
        self._turn += 1
        return self._written + b"]}"


def _entries(messages: Sequence[Message]) -> str:
    return json.dumps(messages)[1:-1]


class Server:
    """A running kvatlas and the publishers that it follows.

    Args:
        folder: for its configuration and log.
        n_servers: how many endpoints it has.
        metrics: URL of the load of all endpoints, read once; without it no load is known.
        policy: how it scores, `weights` or `latency`.
        beside: a server whose publishers it follows too, instead of own ones; runs longer.
        sections: further keys of its configuration, by section.
    """

    def __init__(
        self,
        folder: Path,
        *,
        n_servers: int = N_SERVERS,
        metrics: str = "",
        policy: str = "weights",
        beside: Server | None = None,
        sections: Mapping[str, Mapping[str, object]] | None = None,
    ) -> None:
        self._own = [Publisher("kv") for _ in range(n_servers)] if beside is None else []
        self.publishers: Sequence[Publisher] = self._own if beside is None else beside.publishers
        static = [
            {
                "name": f"server-{i}",
                "address": f"127.0.0.1:{9000 + i}",
                "events": f"tcp://127.0.0.1:{publisher.port}",
                "replay": f"tcp://127.0.0.1:{publisher.replay_port}",
                "metrics": metrics,
            }
            for i, publisher in enumerate(self.publishers)
        ]
        config: dict[str, Any] = {
            "apiVersion": "kvatlas/v1",
            "kind": "KVAtlasConfig",
            "policy": policy,
            "server": {"extProc": "127.0.0.1:0", "rest": "127.0.0.1:0", "health": "", "metrics": ""},
            "model": {"names": [MODEL], "tokenizer": str(model_folder())},
            "tokenization": {"timeout": "60s"},
            "metricsScrape": {"interval": "1h", "staleAfter": "2h", "timeout": "60s"},
            "endpoints": {"static": static},
        }
        for section, keys in (sections or {}).items():
            config[section] = {**config.get(section, {}), **keys}
        file = folder / "kvatlas.yaml"
        file.write_bytes(msgspec.yaml.encode(config))
        self.process = KVAtlasProcess(file, log=folder / "kvatlas.log")

    @property
    def address(self) -> str:
        """The `host:port` of ext-proc, while it runs."""
        return "{}:{}".format(*self.process.addresses["extProc"])

    @property
    def rest(self) -> str:
        """The `http://host:port` of REST, while it runs."""
        return self.process.rest_url

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Run the process and its publishers."""
        replays = [asyncio.create_task(publisher.serve_replay()) for publisher in self._own]
        try:
            async with self.process:
                yield
        finally:
            for task in replays:
                task.cancel()
            for publisher in self._own:
                publisher.close()

    async def hold(self, bodies: Sequence[bytes], session: aiohttp.ClientSession) -> None:
        """Have engines hold the blocks of all bodies, and wait until kvatlas has indexed them."""
        tokenizer = load_tokenizer(model_folder())
        n_blocks = sum(self._hold(body, number, tokenizer) for number, body in enumerate(bodies))
        while await metric(session, r"kvatlas_residencies\{.*\}") < n_blocks:  # noqa: ASYNC110 - a counter of another process
            await asyncio.sleep(0.05)

    def _hold(self, body: bytes, number: int, tokenizer: ModelTokenizer) -> int:
        """Publish that an engine holds the blocks of a chat; returns how many blocks these are."""
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


CHANNEL = (("grpc.max_receive_message_length", 2**26), ("grpc.max_send_message_length", 2**26))


async def send(channel: grpc.aio.Channel, body: bytes, chunk_bytes: int) -> float:
    """Send one request; returns the seconds until its whole body came back with a destination.

    Raises:
        SystemExit: the reply is another one.
    """

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
    """Return the sum of the series whose names match."""
    async with session.get("/metrics") as answer:
        text = await answer.text()
    return sum(float(value) for value in re.findall(rf"^{name} (\S+)$", text, flags=re.MULTILINE))
