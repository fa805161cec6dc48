"""The sockets between the workers of one kvatlas."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Self

from ...scorers.core.model import InFlightLoad
from .sibling_loads import SiblingLoads
from .talk import PATIENCE_S, Talk

NEWS_S = 0.005
"""How long a change may wait for others, which are told with it."""

EVERYTHING_S = 1.0
"""How often everything is told."""

_MAX_MESSAGE_BYTES = 1024 * 1024
_LOADS, _TALK = b"l", b"t"
"""First byte of every message: what it is about."""

_FULL_PAUSE_S = 0.005
"""Before a message is put once more into a mailbox that was full."""


class Mailboxes:
    """One mailbox a worker, made before the workers are; every worker can put messages into every one.

    Args:
        n_workers: how many.
    """

    def __init__(self, n_workers: int) -> None:
        self._pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(n_workers)]
        for pair in self._pairs:
            for end in pair:
                end.setblocking(False)

    def link(self, worker: int) -> SiblingLink:
        """The link of a worker, to be used in its own process."""
        others = {number: into for number, (into, _) in enumerate(self._pairs) if number != worker}
        return SiblingLink(worker, self._pairs[worker][1], others)

    def close(self) -> None:
        """Close every mailbox."""
        for pair in self._pairs:
            for end in pair:
                end.close()


class SiblingLink:
    """Tells the other workers what is in flight here, hears it of them, and lets them talk, within `async with`.

    Implements `scorers.in_flight.Siblings`.

    Args:
        worker: its own number.
        mailbox: where others put what they have to say to it.
        others: what leads into the mailbox of each other worker.
    """

    def __init__(self, worker: int, mailbox: socket.socket, others: Mapping[int, socket.socket]) -> None:
        self.worker = worker
        self.talk = Talk(worker, tuple(others), self._put)
        """Questions to the others, and answers to theirs."""
        self._loads = SiblingLoads(worker, life=time.time())
        self._mailbox, self._others = mailbox, others
        self._flush: asyncio.TimerHandle | None = None
        self._regular: asyncio.Task[None] | None = None

    def of(self, endpoint: str) -> InFlightLoad:
        """See `Siblings.of`."""
        return self._loads.of(endpoint)

    def tell(self, endpoint: str, load: InFlightLoad) -> None:
        """See `Siblings.tell`."""
        self._loads.tell(endpoint, load)
        if self._flush is None and self._regular is not None:
            self._flush = asyncio.get_running_loop().call_later(NEWS_S, self._tell_news)

    async def __aenter__(self) -> Self:
        asyncio.get_running_loop().add_reader(self._mailbox, self._hear)
        self._regular = asyncio.create_task(self._tell_everything(), name="in flight of siblings")
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.get_running_loop().remove_reader(self._mailbox)
        if self._flush is not None:
            self._flush.cancel()
        regular, self._regular = self._regular, None
        if regular is not None:
            regular.cancel()
            await asyncio.gather(regular, return_exceptions=True)
        await self.talk.close()

    def _tell_news(self) -> None:
        self._flush = None
        if self._loads.has_news:
            self._send(self._loads.news())

    async def _tell_everything(self) -> None:
        while True:
            self._send(self._loads.everything())
            self._loads.forget_silent(now=time.monotonic())
            await asyncio.sleep(EVERYTHING_S)

    def _send(self, messages: Iterable[bytes]) -> None:
        for message in messages:
            for other in self._others.values():
                # a full mailbox is that of a worker that hangs; everything is told again
                with contextlib.suppress(OSError):
                    other.send(_LOADS + message)

    async def _put(self, worker: int, message: bytes) -> None:
        """Into a worker's mailbox, also if it is full for a moment: a long answer may fill it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    try:
                        self._others[worker].send(_TALK + message)
                    except BlockingIOError:
                        await asyncio.sleep(_FULL_PAUSE_S)
                    else:
                        return

    def _hear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                message = self._mailbox.recv(_MAX_MESSAGE_BYTES)
                if message[:1] == _LOADS:
                    self._loads.heard(message[1:], now=time.monotonic())
                else:
                    self.talk.heard(message[1:])
