"""What one sibling publishes in one channel, brought into order."""

from __future__ import annotations

from collections.abc import Callable

from .channel import Channel, MalformedError

MAX_HELD = 1024
"""Most payloads held of one channel until a gap closes: the newest ones. Beyond, the whole closes it."""


class Inbound:
    """One channel of one sibling. Payloads are applied as they come; those after a gap are kept, and applied again on its whole.

    Args:
        owner: id of the sibling.
        channel: takes the payloads.
        on_malformed: called for each payload that the channel refuses.
    """

    def __init__(self, owner: str, channel: Channel, on_malformed: Callable[[MalformedError], None]) -> None:
        self._owner, self._channel, self._on_malformed = owner, channel, on_malformed
        self.position: int | None = None
        """Sequence number up to which nothing is missing; None before the first whole."""
        self._newest = 0
        """Highest sequence number of what was applied."""
        self._told = 0
        """Highest sequence number that the sibling is known to have used."""
        self._held: dict[int, bytes] = {}
        """Payloads after a gap, by sequence number."""
        self._freed = 0
        """Highest sequence number after a gap that was applied and is no longer held: what comes late from before it would undo it."""
        self._parts: dict[int, bytes] = {}
        """Parts of the whole that is coming, by their number."""
        self._parts_of = (0, 0)
        """Sequence number of that whole, and how many parts it has."""
        self.n_bytes = 0
        """Bytes held: after a gap, and of a whole that is coming."""

    @property
    def is_behind(self) -> bool:
        """Whether something is missing."""
        return self.position is None or self.position < self._told

    @property
    def n_missing(self) -> int:
        """Messages that are known to be missing, 0 before the first whole."""
        if self.position is None:
            return 0
        return self._told - self.position - len(self._held)

    def told(self, seq: int) -> None:
        """Note that the sibling has sent up to a number."""
        self._told = max(self._told, seq)

    def delta(self, seq: int, payload: bytes) -> None:
        """Take a change."""
        self.told(seq)
        position = self.position
        if (position is not None and seq <= max(position, self._freed)) or seq in self._held:
            return
        if position is not None and seq == position + 1:
            self.position = seq
            self._apply(seq, payload)
            if self._held:
                self._follow()
            return
        self._held[seq] = payload
        self.n_bytes += len(payload)
        if len(self._held) > MAX_HELD:
            oldest = min(self._held)
            self.n_bytes -= len(self._held.pop(oldest))
            self._freed = max(self._freed, oldest)
        if seq > self._newest:  # what it states is newer than all that is known
            self._apply(seq, payload)

    def whole(self, seq: int, part: int, parts: int, payload: bytes) -> None:
        """Take a part of the whole as of a sequence number, and all of it once it is complete."""
        self.told(seq)
        if self.position is not None and seq <= self.position:
            return
        if self._parts_of != (seq, parts):
            if seq < self._parts_of[0]:
                return
            self._forget_parts()
            self._parts_of = seq, parts
        if part not in self._parts:
            self._parts[part] = payload
            self.n_bytes += len(payload)
        if len(self._parts) == parts:
            payloads = [self._parts[number] for number in range(parts)]
            self._forget_parts()
            self._replace(seq, payloads)

    def shed(self) -> None:
        """Free what is held; the next whole makes up for it."""
        self._freed = max(self._freed, *self._held, 0)
        self._held.clear()
        self._forget_parts()
        self.n_bytes = 0

    def _replace(self, seq: int, payloads: list[bytes]) -> None:
        try:
            # an empty whole is one empty part
            self._channel.replace(self._owner, [each for each in payloads if each])
        except MalformedError as error:
            self._on_malformed(error)
        self.position = self._newest = seq
        later = sorted(self._held.items())
        self._held.clear()
        self.n_bytes = sum(map(len, self._parts.values()))
        for number, payload in later:
            if number > seq:
                self.delta(number, payload)

    def _follow(self) -> None:
        """Apply what was held behind the gap that has closed, in order; beyond a further gap it stays applied."""
        for seq in sorted(self._held):
            payload = self._held[seq]
            if self.position is not None and seq == self.position + 1:
                del self._held[seq]
                self.n_bytes -= len(payload)
                self.position = seq
            self._apply(seq, payload)

    def _apply(self, seq: int, payload: bytes) -> None:
        self._newest = max(self._newest, seq)
        try:
            self._channel.apply(self._owner, payload)
        except MalformedError as error:
            self._on_malformed(error)

    def _forget_parts(self) -> None:
        self.n_bytes -= sum(map(len, self._parts.values()))
        self._parts.clear()
        self._parts_of = (0, 0)
