"""A kvatlas that runs in the test process, with real sockets, and its doctor."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import grpc
import grpc.aio
import msgspec

from kvatlas.api.extproc import ext_proc_pb2 as pb
from kvatlas.app.app import App
from kvatlas.routing.plan.config_files import ConfigFiles
from support.ext_proc import DUPLEX, request_body, request_headers
from support.fleets import make_config
from support.publishing import stored
from support.recording import Frame, Player, send
from support.serve import ANY_PORTS
from support.waiting import until

PROMPT = list(range(64))


@dataclass
class LocalProcess:
    """A running process, its doctor and a client session."""

    app: App
    session: aiohttp.ClientSession

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.app.ports['rest']}"

    async def checks(self) -> dict[str, dict[str, Any]]:
        async with self.session.get(f"{self.url}/v1/doctor") as response:
            found = await response.json()
        return {check["name"]: check for check in found["checks"]}

    async def until_state(self, name: str, state: str) -> dict[str, Any]:
        """Wait until a check has a state; return the check."""
        found: dict[str, Any] = {}

        async def has_it() -> bool:
            found.update((await self.checks())[name])
            return bool(found["state"] == state)

        await until(has_it, what=f"{state} of {name}")
        return found

    def age(self, seconds: float = 60) -> None:
        """Make endpoints look as if they were added `seconds` ago."""
        for endpoint in self.app.fleet:
            endpoint.added_at -= seconds

    async def send_requests(
        self,
        n: int,
        *,
        config: pb.ProtocolConfiguration = DUPLEX,
        path: str = "/v1/completions",
        responses: Sequence[pb.ProcessingRequest] = (),
    ) -> None:
        """Send requests over ext-proc, each followed by these messages of its response."""
        body = json.dumps({"model": "m", "prompt": PROMPT, "messages": [{"role": "user", "content": "x"}]})
        async with grpc.aio.insecure_channel(f"127.0.0.1:{self.app.ports['extProc']}") as channel:
            call: grpc.aio.StreamStreamMultiCallable[pb.ProcessingRequest, pb.ProcessingResponse] = (
                channel.stream_stream(
                    "/envoy.service.ext_proc.v3.ExternalProcessor/Process",
                    request_serializer=pb.ProcessingRequest.SerializeToString,
                    response_deserializer=pb.ProcessingResponse.FromString,
                )
            )
            sent = [
                request_headers((":path", path), config=config),
                request_body(body.encode(), end=True),
                *responses,
            ]
            for _ in range(n):
                async for _ in call(iter(sent)):
                    pass


@asynccontextmanager
async def local_process(
    *endpoints: dict[str, Any], files: ConfigFiles | None = None, **sections: Any
) -> AsyncGenerator[LocalProcess]:
    """Run a process with these endpoints, listening on free ports."""
    if files is not None:
        config = files.load().config
    else:
        static = {"static": list(endpoints)}
        config = make_config(**({"server": ANY_PORTS, "endpoints": static} | sections))
    app = App(config, files)
    await app.start()
    try:
        async with aiohttp.ClientSession() as session:
            yield LocalProcess(app, session)
    finally:
        await app.stop(grace_s=0)


def stored_prompt(seq: int, *, ahead_s: float = 0, medium: str = "GPU", locality: str | None = None) -> Frame:
    """Return the event of a stored prompt, stamped by a clock that is `ahead_s` ahead."""
    topic, number, payload = stored(seq, PROMPT).parts
    _, (event,), rank = msgspec.msgpack.decode(payload)
    event |= {"medium": medium, "locality": locality}
    return Frame(0.0, "", (topic, number, msgspec.msgpack.encode([time.time() + ahead_s, [event], rank])))


def removed_block(seq: int) -> Frame:
    """Return the event that removes the last block of that prompt."""
    topic, number, payload = stored(seq, PROMPT).parts
    _, (event,), rank = msgspec.msgpack.decode(payload)
    gone = {"type": "BlockRemoved", "block_hashes": event["block_hashes"][-1:], "medium": "GPU"}
    return Frame(0.0, "", (topic, number, msgspec.msgpack.encode([time.time(), [gone], rank])))


async def until_held(
    process: LocalProcess, engine: Player, name: str = "a", *, frame: Frame | None = None
) -> None:
    """Publish a prompt to those who have subscribed, and wait until its blocks are in the index.

    It goes out once for each subscription that is new: again, it looks like a publisher that has begun anew.
    """
    frame, n_subscribed = frame or stored_prompt(0), 0

    async def held() -> bool:
        nonlocal n_subscribed
        if n_subscribed != engine.n_subscribed:
            n_subscribed = engine.n_subscribed
            await send(engine.pub, frame.parts)
        return bool(process.app.fleet.atlas.occupancy(name)[0].residencies)

    await until(held, what="blocks in the index")
