"""A running server under hostile input: what it does meanwhile, and three ways to send such input to it."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvatlas.api.extproc import ext_proc_pb2 as pb
from kvatlas.sim.demo_model import write_demo_model
from support.ext_proc import DUPLEX, header_map, request_body
from support.ext_proc_client import ExtProcClient, connected
from support.fleets import make_endpoint
from support.recording import Player, player
from support.serve import Served, serving

MODEL = "m"
PIECE_BYTES = 16_384
"""Bytes of a body in one message, about as Envoy sends them."""

_SAMPLE = re.compile(r"^(\w+)(?:\{.*\})? (\S+)$", re.MULTILINE)


@dataclass
class Target:
    """The server that is attacked: with a model, one engine, and a client of the gateway."""

    served: Served
    engine: Player
    client: ExtProcClient
    n_inputs: int = 0
    replies: set[str] = field(default_factory=set[str])
    """Kinds of the last replies of requests, and what went wrong with streams."""
    slowest_s: float = 0.0
    """Longest time of a usual request of another client."""
    _seq: int = 0

    async def total(self, name: str) -> float:
        """Return the sum of a metric over its labels."""
        found = _SAMPLE.findall(await self.served.metrics())
        return sum(float(value) for each, value in found if each == name)

    async def send_body(self, path: str, body: bytes, *, config: pb.ProtocolConfiguration | None) -> None:
        """Send one request through ext-proc, and wait for its end."""
        self.n_inputs += 1
        headers = header_map(((":method", "POST"), (":path", path), ("content-type", "application/json")))
        first = pb.ProcessingRequest(request_headers=pb.HttpHeaders(headers=headers), protocol_config=config)
        size = PIECE_BYTES if config is DUPLEX else max(1, len(body))
        pieces = [body[at : at + size] for at in range(0, len(body), size)] or [b""]
        ends = [number == len(pieces) - 1 for number in range(len(pieces))]
        sent = [request_body(each, end=end) for each, end in zip(pieces, ends, strict=True)]
        conversation = self.client.request([first, *sent])
        wrong = await conversation.ended
        answers = conversation.answers
        self.replies.add(wrong or (str(answers[-1].WhichOneof("response")) if answers else "none"))

    async def send_events(self, payload: bytes) -> None:
        """Publish one event message of the engine."""
        self.n_inputs += 1
        self._seq += 1
        await self.engine.send((b"kv@a@m", self._seq.to_bytes(8, "big"), payload))

    async def send_connection(self, data: bytes) -> None:
        """Open a connection to the port of ext-proc, send bytes, and read what comes until the peer is silent."""
        self.n_inputs += 1
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", self.served.ports["extProc"])
            try:
                writer.write(data)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await writer.drain()
                        while await reader.read(65536):
                            pass
            finally:
                writer.close()

    async def look(self) -> None:
        """Send a usual request, and keep the longest time that one took."""
        begin = time.monotonic()
        assert await self.served.status("/readyz") == 200
        self.slowest_s = max(self.slowest_s, time.monotonic() - begin)


@contextlib.asynccontextmanager
async def attacked(folder: Path, **sections: dict[str, Any]) -> AsyncGenerator[Target]:
    """Run a server with its default limits, a model and one engine; its files go into `folder`."""
    await asyncio.to_thread(write_demo_model, folder / "model")
    async with player() as engine:
        config: dict[str, Any] = {
            "model": {"names": [MODEL], "tokenizer": str(folder / "model")},
            "endpoints": {"static": [make_endpoint("a", events=engine.events, replay=engine.replay)]},
            **sections,
        }
        async with (
            serving(config, folder) as served,
            connected(served.ports["extProc"]) as client,
        ):
            yield Target(served, engine, client)
