"""A gateway between `kvatlas serve` and simulated servers: it follows the picks and reads the responses."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from kvatlas.api.extproc import ext_proc_pb2 as pb
from kvatlas.sim.demo_model import MODEL_NAME, write_demo_model
from kvatlas.sim.fleet import Fleet
from kvatlas.sim.model_text import TokenizerText
from kvatlas.sim.server import ServerConfig
from support.ext_proc import (
    DUPLEX,
    metadata_destination,
    request_body,
    request_headers,
    response_body,
    response_headers,
)
from support.gateway import Gateway, gateway


class Relay:
    """A relay of completions given as token ids.

    Attributes:
        gate: kvatlas.
        fleet: the servers.
        prompt_tokens, cached_tokens: sums over all responses, as the servers counted them.
    """

    def __init__(self, gate: Gateway, fleet: Fleet, session: aiohttp.ClientSession) -> None:
        self.gate, self.fleet = gate, fleet
        self.prompt_tokens = self.cached_tokens = 0
        self._session = session

    async def complete(self, prompt: Sequence[int], *, max_tokens: int = 1) -> str:
        """Send one request and read its whole response; return the address that answered."""
        body = json.dumps({"model": MODEL_NAME, "prompt": list(prompt), "max_tokens": max_tokens}).encode()
        call = self.gate.open()
        await call.write(request_headers((":path", "/v1/completions"), config=DUPLEX).SerializeToString())
        await call.write(request_body(body, end=True).SerializeToString())
        first = await call.read()
        assert isinstance(first, pb.ProcessingResponse)
        await call.read()  # the unchanged body
        address = metadata_destination(first)
        headers = {"content-type": "application/json"}
        async with self._session.post(
            f"http://{address}/v1/completions", data=body, headers=headers
        ) as answer:
            assert answer.status == 200
            text = await answer.read()
        for message in (response_headers(*headers.items()), response_body(text, end=True)):
            await call.write(message.SerializeToString())
            await call.read()
        await call.done_writing()
        await call.code()
        usage: dict[str, Any] = json.loads(text)["usage"]
        details: dict[str, int] | None = usage["prompt_tokens_details"]
        self.prompt_tokens += usage["prompt_tokens"]
        self.cached_tokens += details.get("cached_tokens", 0) if details else 0
        return address


@asynccontextmanager
async def relaying(folder: Path, servers: Sequence[ServerConfig], **config: Any) -> AsyncGenerator[Relay]:
    """Start simulated servers, and a kvatlas with these sections that routes to them."""
    write_demo_model(folder / "model")
    async with Fleet(servers, TokenizerText(folder / "model")) as fleet:
        static = [
            {
                "name": server.config.name,
                "address": server.address,
                "events": server.events_address,
                "replay": server.replay_address,
                "metrics": f"http://{server.address}/metrics",
            }
            for server in fleet.servers
        ]
        async with (
            gateway(folder, endpoints={"static": static}, **config) as gate,
            aiohttp.ClientSession() as session,
        ):
            yield Relay(gate, fleet, session)
