"""kvatlas as a recording starts the reference: its configuration file, its endpoints and its flags."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import grpc.aio
import msgspec

from support.forks import Fork, fork
from support.replay.engines import RECORDED_PORT, Engines, engines
from support.replay.publishers import RECORDED_EVENTS_PORT, Publishers
from support.replay.recordings import Json, Recording
from support.waiting import PATIENCE_S, until

FLAGS = ("--emit-endpoint-scores", "--allow-experimental-plugins", "--secure-serving=false")
"""Flags of every recording."""

_OURS = (
    "--metrics-endpoint-auth=false",
    "--ext-proc=127.0.0.1:0",
    "--rest=127.0.0.1:0",
    "--metrics=",
    "--health=",
)
"""Flags that let several run on this machine, and let the replay read decisions and series."""

_LISTENS = re.compile(r"(\w+) listens on 127\.0\.0\.1:(\d+)")
_LISTENERS = {"extProc", "rest"}


class RefusedStartError(Exception):
    """The process ended before it listened; the text is its message."""


@dataclass
class Running:
    """A running picker and its model servers.

    Attributes:
        recording: what it was started for.
        engines: the model servers.
        process: the picker.
        channel: to its ext-proc listener.
        session: for its REST API.
        publishers: of KV events, None if the recording has none.
        ports: by listener.
        log: its lines so far.
    """

    recording: Recording
    engines: Engines
    process: Fork
    channel: grpc.aio.Channel
    session: aiohttp.ClientSession
    publishers: Publishers | None = None
    ports: dict[str, int] = field(default_factory=dict[str, int])
    log: list[str] = field(default_factory=list[str])

    async def say(self, metrics: dict[str, Json | None]) -> None:
        """Change what servers say, and wait until the picker has taken it."""
        self.engines.say(metrics)
        await self.engines.until_read(tuple(metrics))
        # What was sent to the process before this request is taken before its answer.
        await self.get("/healthz")

    async def publish(self, events: dict[str, list[object]]) -> None:
        """Publish events of servers, and wait until the picker has applied them."""
        assert self.publishers is not None
        sent = await self.publishers.publish(events)

        async def are_applied() -> bool:
            rows = json.loads(await self.get("/v1/endpoints"))["endpoints"]
            applied = {row["name"]: row["publishers"][0]["lastSeq"] for row in rows if row["publishers"]}
            return all(applied.get(name) == seq for name, seq in sent.items())

        await until(are_applied, what="the events in the index")

    async def get(self, path: str) -> bytes:
        """Return the body of an answer of the REST API, empty if there is none of that name."""
        async with self.session.get(f"http://127.0.0.1:{self.ports['rest']}{path}") as answer:
            return await answer.read() if answer.status == 200 else b""


@contextlib.asynccontextmanager
async def running(recording: Recording, folder: Path) -> AsyncGenerator[Running]:
    """Run the picker for a recording, until it has scraped every server once.

    Raises:
        RefusedStartError: it does not start.
    """
    addresses = {each["name"]: (each["address"], int(each["port"])) for each in recording.endpoints}
    async with engines(addresses) as servers, aiohttp.ClientSession() as session:
        servers.say(recording.metrics)
        publishers = Publishers(recording.endpoints) if recording.has_events else None
        file = write_files(recording, folder, servers.port, publishers)
        process = await fork("serve", f"--config-file={file}", *FLAGS, *_OURS, *recording.flags)
        ports: dict[str, int] = {}
        log: list[str] = []
        reader = asyncio.create_task(_read(process, ports, log))
        try:
            await until(
                lambda: ports.keys() >= _LISTENERS or reader.done(), what="kvatlas serve on its ports"
            )
            if reader.done():
                raise RefusedStartError(_message(log, folder))
            async with grpc.aio.insecure_channel(
                f"127.0.0.1:{ports['extProc']}",
                options=[("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)],
            ) as channel:
                picker = Running(recording, servers, process, channel, session, publishers, ports, log)
                await picker.say(dict(recording.metrics))
                yield picker
        finally:
            process.kill()
            await asyncio.wait_for(process.wait(), PATIENCE_S)
            await reader
            if publishers is not None:
                publishers.close()


def write_files(recording: Recording, folder: Path, port: int, publishers: Publishers | None = None) -> Path:
    """Write the recording's configuration with file discovery added, and its endpoints on `port`; return the former.

    Events come from the port of `publishers` in place of the recorded one.
    """
    listed = [each | {"port": str(port + int(each["port"]) - RECORDED_PORT)} for each in recording.endpoints]
    endpoints = folder / "endpoints.yaml"
    endpoints.write_bytes(msgspec.json.encode({"endpoints": listed}))
    text = recording.config_text()
    if publishers is not None:
        text = text.replace(f"socketPort: {RECORDED_EVENTS_PORT}", f"socketPort: {publishers.port}")
    config = msgspec.yaml.decode(text)
    discovery = {"type": "file-discovery", "parameters": {"path": str(endpoints)}}
    config["plugins"] = [*(config.get("plugins") or ()), discovery]
    config.setdefault("dataLayer", {})["discovery"] = {"pluginRef": "file-discovery"}
    file = folder / "config.yaml"
    file.write_bytes(msgspec.yaml.encode(config))
    return file


def _message(log: Sequence[str], folder: Path) -> str:
    """Return the last message of a process, in one line."""
    starts = [number for number, line in enumerate(log) if line.startswith("kvatlas: ")]
    lines = log[starts[-1] :] if starts else log[-3:]
    return " / ".join(line.strip() for line in lines).replace(f"{folder}/", "")


async def _read(process: Fork, ports: dict[str, int], log: list[str]) -> None:
    async for raw in process.stderr:
        line = raw.decode().rstrip()
        log.append(line)
        if found := _LISTENS.search(line):
            ports[found[1]] = int(found[2])
