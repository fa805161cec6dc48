"""Concurrent picks: two replicas pick the same endpoint before either has received the other's pick."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from .channel import UNREADABLE, MalformedError

PICKS_PER_PAYLOAD = 1000
"""Picks in one payload, which has less than 1 MiB with the longest names."""

MAX_ENDPOINTS = 16_384
"""Most endpoints whose last pick is kept."""

_Number = Annotated[int, Meta(ge=0, le=2**62)]
_Mark = Annotated[int, Meta(ge=0, lt=2**32)]
_Endpoint = Annotated[str, Meta(max_length=512)]


class Part(NamedTuple):
    """Picks made in one state of knowledge.

    Attributes:
        heard: mark of a sibling -> number of its last pick that was known; only what has changed since the part before.
        endpoints: picked ones, in order.
    """

    heard: Annotated[dict[_Mark, _Number], Meta(max_length=64)]
    endpoints: Annotated[list[_Endpoint], Meta(max_length=PICKS_PER_PAYLOAD)]


class Made(msgspec.Struct, array_like=True):
    """Payload of the channel: number of its first pick, and the picks."""

    first: _Number
    parts: Annotated[list[Part], Meta(max_length=PICKS_PER_PAYLOAD)]


_DECODER = msgspec.msgpack.Decoder(Made)
_ENCODE = msgspec.msgpack.Encoder().encode


@dataclass(slots=True)
class _Sibling:
    """Number of this replica's last pick that a sibling had received, None if unknown; and the number of the sibling's next pick."""

    knew: int | None = None
    next: int | None = None


class Picks:
    """Channel `picks`: the endpoints that each replica picked, and the picks of its siblings that it had received by then.

    Two picks of one endpoint are concurrent if neither replica had received the other's. A sibling's message about its pick names the
    last pick of this replica that it had received, so no clocks are compared. Each payload counts once. A lost payload is missing
    in the counts, by which nothing is decided.

    Args:
        me: id of this replica, as siblings know it; empty counts nothing.

    Attributes:
        n_heard: picks of siblings.
        n_concurrent: picks among them whose endpoint this replica had picked too, in a message that the sibling had not received.
    """

    def __init__(self, me: str) -> None:
        self.n_heard = self.n_concurrent = 0
        self._me = _mark(me) if me else None
        self._n_made = 0
        self._parts: list[Part] = []
        self._n_waiting = 0
        self._news: dict[int, int] = {}
        """Mark of a sibling -> number of its last pick, if received since the last own pick."""
        self._last: dict[str, int] = {}
        """Number of this replica's last pick of each endpoint."""
        self._siblings: dict[str, _Sibling] = {}
        self._on_change: Callable[[], None] = _nothing

    def made(self, endpoint: str) -> None:
        """Note a pick of this replica. Cost: O(1)."""
        self._n_made += 1
        if len(self._last) >= MAX_ENDPOINTS:
            self._last.clear()
        self._last[endpoint] = self._n_made
        if self._news or not self._parts:
            self._parts.append(Part(self._news, []))
            self._news = {}
        self._parts[-1].endpoints.append(endpoint)
        self._n_waiting += 1
        if self._n_waiting == 1:
            self._on_change()

    def listen(self, on_change: Callable[[], None]) -> None:
        """See `Channel.listen`."""
        self._on_change = on_change

    def drain(self) -> Sequence[bytes]:
        """See `Channel.drain`. Only the last picks are sent if there are more than a payload holds."""
        if not self._n_waiting:
            return ()
        parts, n_waiting = self._parts, self._n_waiting
        self._parts, self._n_waiting = [], 0
        if n_waiting > PICKS_PER_PAYLOAD:
            last = parts[-1].endpoints[-PICKS_PER_PAYLOAD:]
            parts, n_waiting = [Part({}, last)], len(last)
        return (_ENCODE(Made(self._n_made - n_waiting + 1, parts)),)

    def whole(self) -> Sequence[bytes]:
        """See `Channel.whole`: nothing, since picks that are over do not matter."""
        return ()

    def apply(self, owner: str, payload: bytes) -> None:
        """See `Channel.apply`."""
        try:
            made = _DECODER.decode(payload)
        except UNREADABLE as error:
            raise MalformedError(str(error)) from None
        sibling = self._siblings.setdefault(owner, _Sibling())
        if sibling.next is not None and made.first < sibling.next:
            return
        if made.first != sibling.next:
            sibling.knew = None  # the payload with that number may be lost
        n_heard = 0
        for part in made.parts:
            if self._me in part.heard:
                sibling.knew = part.heard[self._me]
            n_heard += len(part.endpoints)
            if sibling.knew is not None:
                last = self._last
                self.n_concurrent += sum(last.get(each, 0) > sibling.knew for each in part.endpoints)
        self.n_heard += n_heard
        sibling.next = made.first + n_heard
        self._news[_mark(owner)] = sibling.next - 1

    def replace(self, owner: str, payloads: Sequence[bytes]) -> None:
        """See `Channel.replace`."""

    def drop(self, owner: str) -> None:
        """See `Channel.drop`."""
        self._siblings.pop(owner, None)
        self._news.pop(_mark(owner), None)


def _mark(replica: str) -> int:
    return zlib.crc32(replica.encode())


def _nothing() -> None:
    pass
