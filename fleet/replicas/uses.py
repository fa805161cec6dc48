"""Uses that plugins remember, such as the endpoints of sessions: the last one counts, whichever replica it came from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from ...scorers.core.shared import SharedUses
from .channel import MAX_PAYLOAD_BYTES, UNREADABLE, MalformedError

USES_PER_PAYLOAD = 1000
"""Most uses in one payload; fewer if their texts are long."""

MAX_TEXT_CHARS = 512
"""Longest text, as that of an endpoint's name in other channels; a use with a longer one is not shared."""

_Text = Annotated[str, Meta(max_length=MAX_TEXT_CHARS)]


class Use(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One use.

    Attributes:
        share: name of what is shared.
        key: for example the digest of a session's id.
        value: what it was used for, such as an endpoint.
        age_s: seconds since then.
    """

    share: _Text
    key: _Text
    value: _Text
    age_s: Annotated[float, Meta(ge=0, le=1e9)]


_USES = msgspec.msgpack.Decoder(Annotated[list[Use], Meta(max_length=USES_PER_PAYLOAD)])
_ENCODE = msgspec.msgpack.Encoder().encode


class Uses:
    """Channel `uses`: see `scorers.core.shared.SharedUses`. Uses outlive the replica that saw them.

    Args:
        clock: returns monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._shares: dict[str, SharedUses] = {}
        self._on_change: Callable[[], None] = _nothing

    def use(self, shares: Mapping[str, SharedUses]) -> None:
        """Share these uses from now on, and no others: another policy decides."""
        for before in self._shares.values():
            before.on_change = None
        self._shares = dict(shares)
        for share in self._shares.values():
            share.on_change = self._noted

    def listen(self, on_change: Callable[[], None]) -> None:
        """See `Channel.listen`."""
        self._on_change = on_change

    def drain(self) -> Sequence[bytes]:
        """See `Channel.drain`."""
        found = list(self._changes())
        return list(_payloads(found)) if found else []

    def whole(self) -> Sequence[bytes]:
        """See `Channel.whole`: all uses that are known here, also those of others."""
        now = self._clock()
        uses = [
            Use(name, key, value, max(0.0, now - used_at))
            for name, share in self._shares.items()
            for key, (value, used_at) in share.uses().items()
        ]
        return list(_payloads(uses))

    def apply(self, owner: str, payload: bytes) -> None:  # noqa: ARG002 - uses have no owner
        """See `Channel.apply`."""
        try:
            uses = _USES.decode(payload)
        except UNREADABLE as error:
            raise MalformedError(str(error)) from None
        now = self._clock()
        for use in uses:
            share = self._shares.get(use.share)
            if share is not None:
                share.on_use(use.key, use.value, now - use.age_s, now)

    def replace(self, owner: str, payloads: Sequence[bytes]) -> None:
        """See `Channel.replace`."""
        for payload in payloads:
            self.apply(owner, payload)

    def drop(self, owner: str) -> None:
        """See `Channel.drop`: uses stay."""

    def _changes(self) -> Iterator[Use]:
        for name, share in self._shares.items():
            changed, share.changed = share.changed, {}
            for key, value in changed.items():
                yield Use(name, key, value, 0.0)

    def _noted(self) -> None:
        self._on_change()


def _payloads(uses: Sequence[Use]) -> Iterator[bytes]:
    sent = [each for each in uses if max(map(len, (each.share, each.key, each.value))) <= MAX_TEXT_CHARS]
    for begin in range(0, len(sent), USES_PER_PAYLOAD):
        yield from _split(sent[begin : begin + USES_PER_PAYLOAD])


def _split(uses: Sequence[Use]) -> Iterator[bytes]:
    payload = _ENCODE(uses)
    if len(payload) <= MAX_PAYLOAD_BYTES:
        yield payload
    else:
        middle = len(uses) // 2
        yield from _split(uses[:middle])
        yield from _split(uses[middle:])


def _nothing() -> None:
    pass
