"""Engines that answer as a recording says, and keep what they were sent.

An answer waits until all requests that were under way together in the recording are here: that they are is then no
matter of time. What the recording sent later has to come later.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from kvatlas.sim.held_port import HeldPort
from support.sidecar.json_values import as_object
from support.sidecar_replay.recordings import Json
from support.waiting import until

HOST = "127.0.0.1"
TOGETHER_S = 10.0
"""Longest wait for requests that should be under way together; only a wrong sidecar takes it."""

_MAX_HEAD_BYTES = 2**20
_PAUSE_S = 0.1
"""Between the two writes of an answer whose recording has a pause there."""

_DATE = "Sun, 22 Nov 2026 00:00:00 GMT"


@dataclass
class Leg:
    """A request that an engine got.

    Attributes:
        to: name of the engine.
        step: 1 more than the greatest step of requests that were answered before it came.
        method: of the request.
        path: with query.
        headers: name and value, in order.
        body: whole.
        recorded: the leg of the recording whose answer it gets, None if the recording has no more.
        sent: body of the answer, as far as it was sent.
        is_answered: whether the answer was given.
        is_dropped: whether the sidecar closed the connection before.
    """

    to: str
    step: int
    method: str
    path: str
    headers: list[tuple[str, str]]
    body: bytes
    recorded: Json | None
    sent: bytes = b""
    is_answered: bool = False
    is_dropped: bool = False


@dataclass
class Engines:
    """The engines of one case.

    Attributes:
        recorded: the legs of the recording, ports filled in.
        legs: what came so far.
    """

    recorded: Sequence[Json]
    legs: list[Leg] = field(default_factory=list[Leg])

    async def serve(self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection to the engine `name`."""
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            try:
                while await self._request(name, reader, writer):
                    pass
            finally:
                writer.close()

    async def until_all_came(self) -> None:
        """Wait for all requests that the recording has."""
        with contextlib.suppress(AssertionError):
            await until(lambda: len(self.legs) >= len(self.recorded), timeout_s=TOGETHER_S)

    async def _request(self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return False
        first, *lines = head.decode("latin-1").split("\r\n")[:-2]
        method, path, _ = first.split(" ")
        headers = [(each.partition(":")[0], each.partition(":")[2].strip()) for each in lines]
        body = await _body(reader, {name.lower(): value for name, value in headers})
        step = 1 + max((leg.step for leg in self.legs if leg.is_answered), default=0)
        leg = Leg(name, step, method, path, headers, body, self._recorded(name, body))
        self.legs.append(leg)
        if leg.recorded is None:
            writer.write(b"HTTP/1.1 599 Not recorded\r\ncontent-length: 0\r\n\r\n")
            return True
        gone = asyncio.create_task(_until_gone(reader))
        answering = asyncio.create_task(self._answer(leg, leg.recorded, writer))
        try:
            await asyncio.wait((gone, answering), return_when=asyncio.FIRST_COMPLETED)
            leg.is_dropped = not leg.is_answered
            return not gone.done() and await answering
        finally:
            for task in (gone, answering):
                task.cancel()
            await asyncio.gather(gone, answering, return_exceptions=True)

    def _recorded(self, name: str, body: bytes) -> Json | None:
        """Return the leg whose answer is next: of several at the same time, the one for this message."""
        used = [id(leg.recorded) for leg in self.legs]
        left = [each for each in self.recorded if each["to"] == name and id(each) not in used]
        same_step = [each for each in left if each.get("step") == left[0].get("step")]
        return next((each for each in same_step if _is_for(each, body)), left[0] if left else None)

    async def _answer(self, leg: Leg, recorded: Json, writer: asyncio.StreamWriter) -> bool:
        answer: Json = recorded["answered"]
        together = [each for each in self.recorded if each.get("step") == recorded.get("step")]

        def are_here() -> bool:
            return {id(each) for each in together} <= {id(each.recorded) for each in self.legs}

        with contextlib.suppress(AssertionError):
            await until(are_here, timeout_s=TOGETHER_S)
        is_dropped = recorded["cancelled_by_sidecar"] and "sse" not in answer
        if answer.get("never_answered") or not answer or is_dropped:
            await asyncio.Event().wait()
        if answer.get("closed_without_answer"):
            leg.is_answered = True
            return False
        head, pieces = _answer_of(answer)
        writer.write(head)
        then = answer.get("then", "")
        for piece in pieces:
            leg.sent += piece
            writer.write(_framed(piece) if _is_chunked(answer) else piece)
            await writer.drain()
            if "split" in answer:
                await asyncio.sleep(_PAUSE_S)
        if recorded["cancelled_by_sidecar"]:
            await asyncio.Event().wait()
        leg.is_answered = True
        if then:
            writer.transport.abort()
            return False
        if _is_chunked(answer):
            writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True


def _is_for(recorded: Json, body: bytes) -> bool:
    sent = as_object(recorded.get("body"))
    return bool(sent and body) and sent.get("messages") == as_object(json.loads(body)).get("messages")


def _is_chunked(answer: Json) -> bool:
    return "sse" in answer or answer.get("framing") == "chunked"


def _framed(piece: bytes) -> bytes:
    return f"{len(piece):x}\r\n".encode() + piece + b"\r\n"


def _answer_of(answer: Json) -> tuple[bytes, list[bytes]]:
    """Return head and pieces of the body, as far as it is sent."""
    kind = "application/json"
    if "sse" in answer:
        kind = "text/event-stream; charset=utf-8"
        pieces = [event.encode() for event in answer["sse"]]
    else:
        pieces = [body_bytes(answer["body"])]
        if isinstance(answer["body"], str) and not answer["body"].lstrip().startswith(("{", "[")):
            kind = "text/plain"
    length = sum(map(len, pieces))
    if "cut" in answer:
        pieces = [part for piece in pieces for part in (piece[:30], piece[30:]) if part]
    if "split" in answer:
        first = 40 if "40 bytes" in answer["split"] else 100
        pieces = [pieces[0][:first], pieces[0][first:]]
    then: str = answer.get("then", "")
    if then == "connection reset after 40 bytes":
        pieces = [pieces[0][:40]]
    elif then.startswith("closed "):
        length += int(then.split()[1])
    headers = [
        ("date", _DATE),
        ("server", "uvicorn"),
        ("content-type", kind),
        *answer.get("extra_headers", ()),
    ]
    headers.append(
        ("transfer-encoding", "chunked") if _is_chunked(answer) else ("content-length", str(length))
    )
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
    return f"HTTP/1.1 {answer['status']} Recorded\r\n{lines}\r\n".encode(), pieces


def body_bytes(body: object) -> bytes:
    """Return the bytes of a recorded body: a text as it is, an object as JSON."""
    if body is None:
        return b""
    if isinstance(body, str):
        return body.encode()
    fields = as_object(body)
    if fields.keys() == {"base64"}:
        return base64.b64decode(fields["base64"])
    if fields.keys() == {"latin1"}:
        return str(fields["latin1"]).encode("latin-1")
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()


async def _body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    if "content-length" in headers:
        return await reader.readexactly(int(headers["content-length"]))
    body = b""
    while headers.get("transfer-encoding") == "chunked":
        size = int(await reader.readline(), 16)
        body += (await reader.readexactly(size + 2))[:size]
        if not size:
            break
    return body


async def _until_gone(reader: asyncio.StreamReader) -> None:
    # No request follows before the answer, so only the end can come.
    with contextlib.suppress(ConnectionError):
        await reader.read(1)


@contextlib.asynccontextmanager
async def listening(
    names: Iterable[str], ports: Mapping[str, HeldPort], engines: list[Engines]
) -> AsyncGenerator[None]:
    """Listen as the engines `names`; each connection is served by the last of `engines` at its beginning."""
    servers: list[asyncio.Server] = []
    tasks: set[asyncio.Task[None]] = set()

    def connected(name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(engines[-1].serve(name, reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    try:
        for name in names:
            port = ports[name.upper()].number
            servers += [
                await asyncio.start_server(partial(connected, name), HOST, port, limit=_MAX_HEAD_BYTES)
            ]
        yield
    finally:
        for server in servers:
            server.close()
        for task in (left := [*tasks]):
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
