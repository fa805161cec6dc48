"""Questions and answers between the workers of one kvatlas, without sockets."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Container, Iterable, Iterator, Sequence

import msgspec

from ...events.errors import KVAtlasError
from ...events.sockets import spawn

log = logging.getLogger(__name__)

PART_BYTES = 32 * 1024
"""Longer messages travel in parts: a Unix datagram has its bounds."""

MAX_PARTS = 4096
"""128 MB, more than any answer; what claims to be longer is ignored."""

MAX_UNFINISHED = 256
"""Messages of which parts are missing, the oldest of which goes first."""

PATIENCE_S = 1.0
"""How long an answer is waited for. A worker that is busy for longer answers nobody else either."""

Handler = Callable[[bytes], Awaitable[bytes]]
"""Answers a question. A KVAtlasError is no answer; who asks counts the worker as silent."""


class _Part(msgspec.Struct, array_like=True):
    """One datagram."""

    sender: int
    number: int
    """Of the question; an answer has that of its question."""
    topic: str
    """Empty for an answer."""
    is_good: bool
    """False for an answer that says that there is none."""
    index: int
    count: int
    body: bytes


class Talk:
    """One worker's questions to the others, and its answers to theirs.

    Args:
        worker: its own number.
        others: numbers of the others.
        send: gives a datagram to a worker; returns when it is on the way or has been given up.
    """

    def __init__(
        self, worker: int, others: Sequence[int], send: Callable[[int, bytes], Awaitable[None]]
    ) -> None:
        self.worker, self._others, self._send = worker, tuple(others), send
        self._handlers: dict[str, Handler] = {}
        self._numbers = itertools.count(time.time_ns())  # not those of an earlier worker of this number
        self._waiting: dict[int, dict[int, asyncio.Future[bytes | None]]] = {}
        self._unfinished: dict[tuple[int, int, str], dict[int, bytes]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(_Part).decode

    def on(self, topic: str, handler: Handler) -> None:
        """Answer questions on a topic from now on."""
        self._handlers[topic] = handler

    async def ask(
        self,
        topic: str,
        body: bytes = b"",
        *,
        of: Iterable[int] | None = None,
        patience_s: float = PATIENCE_S,
    ) -> dict[int, bytes]:
        """Answers by worker; those that are silent for too long, or have none, are absent.

        Args:
            topic: what is asked.
            body: the question.
            of: whom; None for all others.
            patience_s: how long an answer is waited for.
        """
        number, loop = next(self._numbers), asyncio.get_running_loop()
        asked = tuple(self._others if of is None else of)
        answers = self._waiting[number] = {worker: loop.create_future() for worker in asked}
        try:
            async with asyncio.timeout(patience_s):
                await asyncio.gather(*(self._post(worker, number, topic, body) for worker in asked))
                await asyncio.wait(answers.values()) if answers else None
        except TimeoutError:
            pass
        finally:
            del self._waiting[number]
        done = ((worker, answer.result()) for worker, answer in answers.items() if answer.done())
        return {worker: answer for worker, answer in done if answer is not None}

    def silent(self, answers: Container[int]) -> tuple[int, ...]:
        """The others that are not among `answers`."""
        return tuple(worker for worker in self._others if worker not in answers)

    def heard(self, datagram: bytes) -> None:
        """Take in a datagram; one that cannot be read is ignored."""
        try:
            part = self._decode(datagram)
        except msgspec.DecodeError:
            return
        body = self._whole(part)
        if body is None:
            return
        if part.topic:
            spawned = spawn(self._answer(part, body), f"answer to worker {part.sender}")
            self._tasks.add(spawned)
            spawned.add_done_callback(self._tasks.discard)
            return
        waiting = self._waiting.get(part.number, {}).get(part.sender)
        if waiting is not None and not waiting.done():
            waiting.set_result(body if part.is_good else None)

    @property
    def n_unfinished(self) -> int:
        """Messages of which parts are missing."""
        return len(self._unfinished)

    async def close(self) -> None:
        """Leave open what is still to be answered."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _answer(self, asked: _Part, body: bytes) -> None:
        handler, answer = self._handlers.get(asked.topic), None
        if handler is not None:
            try:
                answer = await handler(body)
            except KVAtlasError as error:
                log.warning("worker %d asked for %s: %s", asked.sender, asked.topic, error)
        await self._post(asked.sender, asked.number, "", answer or b"", is_good=answer is not None)

    async def _post(self, to: int, number: int, topic: str, body: bytes, *, is_good: bool = True) -> None:
        for datagram in self._datagrams(number, topic, body, is_good=is_good):
            await self._send(to, datagram)

    def _datagrams(self, number: int, topic: str, body: bytes, *, is_good: bool) -> Iterator[bytes]:
        starts = range(0, max(len(body), 1), PART_BYTES)
        for index, start in enumerate(starts):
            part = body[start : start + PART_BYTES]
            yield self._encode(_Part(self.worker, number, topic, is_good, index, len(starts), part))

    def _whole(self, part: _Part) -> bytes | None:
        """The message of which a part came, None while others are missing."""
        if part.count == 1:
            return part.body
        if not 0 <= part.index < part.count <= MAX_PARTS:
            return None
        which = (part.sender, part.number, part.topic)
        parts = self._unfinished.setdefault(which, {})
        parts[part.index] = part.body
        if len(parts) == part.count:
            del self._unfinished[which]
            return b"".join(parts[index] for index in range(part.count))
        while len(self._unfinished) > MAX_UNFINISHED:
            del self._unfinished[next(iter(self._unfinished))]
        return None
