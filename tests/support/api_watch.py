"""Watches and error responses of the fake API server."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import msgspec
from aiohttp import web

Json = dict[str, Any]


@dataclass(frozen=True)
class Happening:
    """One change: the object before and after it, None if it did not exist."""

    position: int
    collection: str
    before: Json | None
    after: Json | None


class Watched(Protocol):
    """Interface of the server for its watches."""

    position: int
    history: list[Happening]
    piece_bytes: int

    def sends_nothing(self, request: web.Request) -> bool:
        """Return whether a watch gets nothing."""
        ...

    @property
    def changed(self) -> asyncio.Event:
        """Event that the next change sets."""
        ...


@dataclass(eq=False)
class Watching:
    """One open watch."""

    server: Watched
    request: web.Request
    response: web.StreamResponse
    collection: str
    kind: str
    position: int
    bookmark_due: bool = False
    end: Literal["", "close", "reset", "mid_line", "error"] = ""

    async def run(self) -> None:
        while not self.end:
            changed = self.server.changed
            if not self.server.sends_nothing(self.request):
                await self._catch_up()
            await changed.wait()
        match self.end:
            case "reset":
                self._abort()
            case "mid_line":
                await self.response.write(line("ADDED", {"metadata": {"name": "cut"}})[:-9])
            case "error":
                await self.response.write(line("ERROR", status_body(500, "InternalError", "etcd is away")))
            case _:
                pass

    async def last_bookmark(self) -> None:
        """Send a bookmark before the time of the watch is over; a stalled watch does not end then."""
        while self.server.sends_nothing(self.request):
            await self.server.changed.wait()
        self.bookmark_due = True
        await self._catch_up()

    async def _catch_up(self) -> None:
        for happening in [each for each in self.server.history if each.position > self.position]:
            self.position = happening.position
            if happening.collection == self.collection:
                await self._tell(happening)
        if self.bookmark_due:
            self.bookmark_due = False
            self.position = self.server.position
            await self._write(
                line("BOOKMARK", {"kind": self.kind, "metadata": {"resourceVersion": str(self.position)}})
            )

    async def _tell(self, happening: Happening) -> None:
        before, after = happening.before, happening.after
        was = before is not None and selects(self.request.query, before)
        if after is not None and selects(self.request.query, after):
            await self._write(line("MODIFIED" if was else "ADDED", after | {"kind": self.kind}))
        elif was and before is not None:
            last = copy.deepcopy(after or before)
            last["metadata"]["resourceVersion"] = str(happening.position)
            await self._write(line("DELETED", last | {"kind": self.kind}))

    async def _write(self, line: bytes) -> None:
        size = self.server.piece_bytes or len(line)
        for start in range(0, len(line), size):
            await self.response.write(line[start : start + size])

    def _abort(self) -> None:
        if self.request.transport is not None:
            self.request.transport.abort()


def selects(query: Mapping[str, str], found: Json) -> bool:
    meta = found["metadata"]
    field_selector = query.get("fieldSelector", "")
    if field_selector and field_selector != f"metadata.name={meta['name']}":
        return False
    wanted = [pair.partition("=") for pair in query.get("labelSelector", "").split(",") if pair]
    return all(meta.get("labels", {}).get(name) == value for name, _, value in wanted)


def line(kind: str, found: Json) -> bytes:
    return msgspec.json.encode({"type": kind, "object": found}) + b"\n"


def status_body(code: int, reason: str, message: str, **details: int) -> Json:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": code,
        "reason": reason,
        "message": message,
        "details": details,
    }


def status(code: int, reason: str, message: str, **details: int) -> web.Response:
    return web.json_response(status_body(code, reason, message, **details), status=code)


async def cut(request: web.Request, body: bytes) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    response.content_length = len(body)
    await response.prepare(request)
    await response.write(body[: len(body) // 2])
    if request.transport is not None:
        request.transport.abort()
    return response
