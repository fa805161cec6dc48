"""A running `kvatlas serve`, seen from a gateway that asks it over ext-proc."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from kvatlas.api.extproc import ext_proc_pb2 as pb
from support.ext_proc import DUPLEX, metadata_destination, request_body, request_headers, response_body
from support.serve import Served, serving

ADDRESSES = {"127.0.0.1:1": "a", "127.0.0.1:2": "b"}
FLEET = {
    "static": [
        {"name": name, "address": address, "events": "", "metrics": ""} for address, name in ADDRESSES.items()
    ]
}
EVENT_STREAM = ("content-type", "text/event-stream")
Call = grpc.aio.StreamStreamCall[bytes, pb.ProcessingResponse]


@dataclass
class Request:
    """One request through the picker.

    Attributes:
        call: its stream.
        address: where it was sent.
    """

    call: Call
    address: str

    @property
    def endpoint(self) -> str:
        """Name of the endpoint it was sent to, one of the two above."""
        return ADDRESSES[self.address]

    async def say(self, message: pb.ProcessingRequest) -> pb.ProcessingResponse:
        await self.call.write(message.SerializeToString())
        answer = await self.call.read()
        assert isinstance(answer, pb.ProcessingResponse)
        return answer

    async def end(self) -> None:
        await self.say(response_body(end=True))
        await self.call.done_writing()
        assert await self.call.code() == grpc.StatusCode.OK


@dataclass
class Gateway:
    """A running process and a client of it."""

    served: Served
    open: Callable[[], Call]

    @property
    def url(self) -> str:
        """REST address of the process."""
        return f"http://127.0.0.1:{self.served.ports['rest']}"

    async def request(self, tokens: int = 100, *headers: tuple[str, str]) -> Request:
        """Send a completion with `tokens` token ids, until its destination is known."""
        body = {"model": "m", "prompt": list(range(tokens)), "stream": True}
        return await self.post("/v1/completions", body, *headers)

    async def post(self, path: str, body: dict[str, Any], *headers: tuple[str, str]) -> Request:
        """Send a request until its destination is known."""
        call = self.open()
        head = request_headers((":path", path), *headers, config=DUPLEX)
        for message in (head, request_body(json.dumps(body).encode(), end=True)):
            await call.write(message.SerializeToString())
        first = await call.read()
        assert isinstance(first, pb.ProcessingResponse)
        assert not first.HasField("immediate_response"), first
        await call.read()  # the body given back
        return Request(call, metadata_destination(first))

    async def in_flight(self) -> dict[str, tuple[float, float]]:
        """Endpoint -> (requests, tokens)."""
        text = await self.served.metrics()

        def value(metric: str, name: str) -> float:
            start = f'kvatlas_in_flight_{metric}{{endpoint="{name}"}} '
            return next(float(line[len(start) :]) for line in text.splitlines() if line.startswith(start))

        return {name: (value("requests", name), value("tokens", name)) for name in ADDRESSES.values()}

    def now(self, **wanted: tuple[float, float]) -> Callable[[], Awaitable[bool]]:
        async def check() -> bool:
            return await self.in_flight() == {"a": (0, 0), "b": (0, 0)} | wanted

        return check


@asynccontextmanager
async def gateway(folder: Path, *flags: str, **config: Any) -> AsyncGenerator[Gateway]:
    """`kvatlas serve` with these sections of a configuration, and two endpoints unless it has its own."""
    async with serving({"endpoints": FLEET} | config, folder, *flags) as served, asking(served) as gate:
        yield gate


@asynccontextmanager
async def asking(served: Served) -> AsyncGenerator[Gateway]:
    """Connect to a running process."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{served.ports['extProc']}") as channel:
        process: grpc.aio.StreamStreamMultiCallable[bytes, pb.ProcessingResponse] = channel.stream_stream(
            "/envoy.service.ext_proc.v3.ExternalProcessor/Process",
            response_deserializer=pb.ProcessingResponse.FromString,
        )
        yield Gateway(served, process)
