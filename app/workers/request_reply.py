"""Requests and replies between the workers of one kvatlas, without sockets."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Container, Iterable, Sequence

import msgspec

from ...events.errors import KVAtlasError
from ...events.tasks import spawn

log = logging.getLogger(__name__)

TIMEOUT_S = 1.0
"""Wait for a reply. A worker that is busy for longer replies to nobody else either."""

UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Errors of decoding a message that no worker sends."""

Handler = Callable[[bytes], Awaitable[bytes]]
"""Returns the reply to a request. A KVAtlasError is no reply: the requester counts the worker as silent."""


class _Message(msgspec.Struct, array_like=True):
    """One request or reply."""

    sender: int
    number: int
    """Number of the request; a reply repeats it."""
    topic: str
    """Empty in a reply."""
    ok: bool
    """False in a reply without a result."""
    body: bytes


class RequestReply:
    """One worker's requests to the others, and its replies to theirs.

    Args:
        worker: its own number.
        others: numbers of the others.
        send: sends a message to a worker; returns when it is queued or was given up.
    """

    def __init__(
        self, worker: int, others: Sequence[int], send: Callable[[int, bytes], Awaitable[None]]
    ) -> None:
        self.worker, self._others, self._send = worker, tuple(others), send
        self._handlers: dict[str, Handler] = {}
        self._numbers = itertools.count(time.time_ns())  # not those of an earlier worker of this number
        self._pending: dict[int, dict[int, asyncio.Future[bytes | None]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(_Message).decode

    def handle(self, topic: str, handler: Handler) -> None:
        """Reply to requests on a topic from now on."""
        self._handlers[topic] = handler

    async def request(
        self,
        topic: str,
        body: bytes = b"",
        *,
        to: Iterable[int] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> dict[int, bytes]:
        """Return the replies by worker; workers without a reply in time are absent.

        Args:
            topic: selects the handler.
            body: the request.
            to: numbers of the workers to ask; None for all others.
            timeout_s: wait for all replies together.
        """
        number, loop = next(self._numbers), asyncio.get_running_loop()
        workers = tuple(self._others if to is None else to)
        replies = self._pending[number] = {worker: loop.create_future() for worker in workers}
        message = self._encode(_Message(self.worker, number, topic, True, body))
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*(self._send(worker, message) for worker in workers))
                await asyncio.wait(replies.values()) if replies else None
        except TimeoutError:
            pass
        finally:
            del self._pending[number]
        done = ((worker, reply.result()) for worker, reply in replies.items() if reply.done())
        return {worker: reply for worker, reply in done if reply is not None}

    def silent(self, replies: Container[int]) -> tuple[int, ...]:
        """Return the others that are not among `replies`."""
        return tuple(worker for worker in self._others if worker not in replies)

    def receive(self, data: bytes) -> None:
        """Take in a message; one that cannot be decoded is ignored."""
        try:
            message = self._decode(data)
        except UNDECODABLE:
            return
        if message.topic:
            task = spawn(self._reply(message), "reply to worker", of=str(message.sender))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        pending = self._pending.get(message.number, {}).get(message.sender)
        if pending is not None and not pending.done():
            pending.set_result(message.body if message.ok else None)

    async def close(self) -> None:
        """Cancel the replies that are being made."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _reply(self, request: _Message) -> None:
        handler, result = self._handlers.get(request.topic), None
        if handler is not None:
            try:
                result = await handler(request.body)
            except KVAtlasError as error:
                log.warning("worker %d requested %s: %s", request.sender, request.topic, error)
        reply = _Message(self.worker, request.number, "", result is not None, result or b"")
        await self._send(request.sender, self._encode(reply))
