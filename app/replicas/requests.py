"""Requests to all siblings, and replies to theirs, as letters."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Generic, TypeVar

import msgspec
from msgspec import Meta

from ...events.errors import KVAtlasError
from ...events.tasks import spawn
from ...fleet.replicas.channel import MalformedError

log = logging.getLogger(__name__)

LETTERS = "request"
"""Name of the letters."""

TIMEOUT_S = 1.0
"""Wait for all replies. A sibling that is busy for longer replies to nobody else either."""

MAX_REPLYING = 64
"""Most replies prepared at the same time; further requests get no reply, and their senders count this replica as missing."""

PART_BYTES = 512 * 1024
MAX_PARTS = 32
"""Longer replies, beyond 16 MiB, are not sent: the explanation of one decision among 10,000 endpoints is shorter."""

_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError)

Reply = TypeVar("Reply")

Handler = Callable[[bytes], Awaitable[bytes]]
"""Returns the reply to a request. After a KVAtlasError or an unreadable request there is none."""


class _Asked(msgspec.Struct, array_like=True, tag="?"):
    """A request."""

    number: int
    topic: Annotated[str, Meta(max_length=64)]
    body: Annotated[bytes, Meta(max_length=64 * 1024)]


class _Replied(msgspec.Struct, array_like=True, tag="!"):
    """A part of a reply; `n_parts` is 0 if there is no reply."""

    number: int
    part: Annotated[int, Meta(ge=0)]
    n_parts: Annotated[int, Meta(ge=0, le=MAX_PARTS)]
    body: bytes


@dataclass(frozen=True, slots=True)
class Replies(Generic[Reply]):
    """Replies to one request.

    Attributes:
        found: name of a sibling -> its reply.
        missing: names of the siblings without a reply, in order.
    """

    found: Mapping[str, Reply]
    missing: Sequence[str]


class _Pending:
    """The pending reply of one sibling."""

    def __init__(self) -> None:
        self.reply: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self._parts: dict[int, bytes] = {}

    def take(self, part: _Replied) -> None:
        if self.reply.done():
            return
        if not part.n_parts:
            self.reply.set_result(None)
        elif part.part < part.n_parts:
            self._parts[part.part] = part.body
            if len(self._parts) == part.n_parts:
                self.reply.set_result(b"".join(self._parts[number] for number in sorted(self._parts)))


class Requests:
    """This replica's requests to its siblings, and its replies to theirs. Implements `channel.Letters`.

    Args:
        living: returns the ids of the siblings that live.
        post: sends a letter to a sibling.
        expected: names of siblings that are missing if they do not live, such as the other workers of the pod.
    """

    def __init__(
        self,
        living: Callable[[], Collection[str]],
        post: Callable[[str, bytes], None],
        *,
        expected: Collection[str] = (),
    ) -> None:
        self._living, self._post, self._expected = living, post, frozenset(expected)
        self._handlers: dict[str, Handler] = {}
        self._numbers = itertools.count(time.time_ns())
        self._pending: dict[int, dict[str, _Pending]] = {}
        self._replying: set[asyncio.Task[None]] = set()
        self._decode = msgspec.msgpack.Decoder(_Asked | _Replied).decode

    def handle(self, topic: str, handler: Handler) -> None:
        """Reply to requests on a topic from now on."""
        self._handlers[topic] = handler

    async def request(
        self, topic: str, body: bytes, read: Callable[[bytes], Reply], *, timeout_s: float = TIMEOUT_S
    ) -> Replies[Reply]:
        """Return the replies of all siblings that live; with none of them this returns at once.

        Args:
            topic: selects the handler.
            body: the request.
            read: decodes a reply; one that raises ValueError or DecodeError is missing.
            timeout_s: wait for all replies together.
        """
        number, asked = next(self._numbers), list(self._living())
        pending = self._pending[number] = {sibling: _Pending() for sibling in asked}
        message = msgspec.msgpack.encode(_Asked(number, topic, body))
        try:
            for sibling in asked:
                self._post(sibling, message)
            if pending:
                await asyncio.wait([each.reply for each in pending.values()], timeout=timeout_s)
        finally:
            del self._pending[number]
        found: dict[str, Reply] = {}
        for sibling, each in pending.items():
            if each.reply.done() and (reply := each.reply.result()) is not None:
                try:
                    found[_name(sibling)] = read(reply)
                except _UNREADABLE as error:
                    log.warning("replica %s: its reply about %s cannot be read: %s", sibling, topic, error)
        wanted = self._expected.union(map(_name, asked))
        return Replies(found, sorted(wanted - found.keys()))

    def received(self, sender: str, payload: bytes, now_ns: int) -> Sequence[tuple[str, bytes]]:  # noqa: ARG002
        """See `channel.Letters.received`."""
        try:
            message = self._decode(payload)
        except _UNREADABLE as error:
            raise MalformedError(str(error)) from None
        if isinstance(message, _Replied):
            if (pending := self._pending.get(message.number, {}).get(sender)) is not None:
                pending.take(message)
        elif len(self._replying) < MAX_REPLYING:
            task = spawn(self._reply(sender, message), "reply to replica", of=_name(sender))
            self._replying.add(task)
            task.add_done_callback(self._replying.discard)
        return ()

    async def _reply(self, sender: str, asked: _Asked) -> None:
        handler, reply = self._handlers.get(asked.topic), None
        if handler is not None:
            try:
                reply = await handler(asked.body)
            except (KVAtlasError, *_UNREADABLE) as error:
                log.warning("replica %s requested %s: %s", _name(sender), asked.topic, error)
        n_parts = 0 if reply is None else max(1, -(-len(reply) // PART_BYTES))
        if reply is None or n_parts > MAX_PARTS:
            self._post(sender, msgspec.msgpack.encode(_Replied(asked.number, 0, 0, b"")))
            return
        for part in range(n_parts):
            body = reply[part * PART_BYTES : (part + 1) * PART_BYTES]
            self._post(sender, msgspec.msgpack.encode(_Replied(asked.number, part, n_parts, body)))


def _name(replica: str) -> str:
    """Return the name in an id of a replica."""
    return replica.partition("/")[0]
