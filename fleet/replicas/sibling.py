"""One sibling of a replica: when it was heard, what came of it, and what is missing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from .channel import Channel, MalformedError
from .identity import replica_id
from .inbound import Inbound

ASK_NS = 200_000_000
"""Least time between two questions for the same whole."""

REPLY_NS = 1_000_000_000
"""Least time between two wholes of a channel for one asker."""

MAX_HELD_BYTES = 32 * 2**20
"""Most bytes held of one sibling until gaps close and wholes are complete."""

MAX_BYTES_PER_S = 64 * 2**20
"""Most bytes per second that are taken of one sibling; what comes beyond is dropped, and healed by wholes."""


class SiblingState(StrEnum):
    """State of a sibling."""

    LIVE = "live"
    """All that it published is known."""
    BEHIND = "behind"
    """Something that it published is missing."""
    SILENT = "silent"
    """It was not heard in time; what it owned is dropped."""
    REFUSED = "refused"
    """Its messages are refused."""


@dataclass(frozen=True, slots=True)
class Sibling:
    """What is shown of one sibling.

    Attributes:
        id: name and life; of one that is refused the name alone, if it is known.
        name: stable name.
        version: of its kvatlas, empty before its first heartbeat.
        state: see `SiblingState`.
        age_s: seconds since its last message.
        n_missing: messages that are known to be missing.
        n_bytes: bytes received of it.
        n_messages: messages received of it.
        n_held_bytes: bytes held until gaps close and wholes are complete.
        reason: why it is refused, empty if it is not.
    """

    id: str
    name: str
    version: str
    state: SiblingState
    age_s: float
    n_missing: int = 0
    n_bytes: int = 0
    n_messages: int = 0
    n_held_bytes: int = 0
    reason: str = ""


class SiblingLink:
    """State of one sibling.

    Args:
        name: its stable name.
        boot: number of its life.
        channels: name -> channel.
        on_malformed: called with the channel's name and the error for each payload that a channel refuses.
    """

    def __init__(
        self,
        name: str,
        boot: int,
        channels: Mapping[str, Channel],
        on_malformed: Callable[[str, MalformedError], None],
        *,
        now_ns: int,
    ) -> None:
        self.name, self.boot, self.version = name, boot, ""
        self.id = replica_id(name, boot)
        self._channels, self._on_malformed = channels, on_malformed
        self.inbound: dict[str, Inbound] = {}
        """Order of each channel; empty while the sibling is silent."""
        self.heard_ns = now_ns
        self.is_silent = True
        self.n_bytes = self.n_messages = 0
        self._second_ns, self._second_bytes = now_ns, 0
        self._asked_ns: dict[str, int] = {}
        self._replied_ns: dict[str, int] = {}

    def heard(self, n_bytes: int, now_ns: int) -> bool:
        """Note a message; return whether it may be taken."""
        if self.is_silent:
            self.is_silent = False
            self.inbound = {name: self._inbound(name, channel) for name, channel in self._channels.items()}
        self.heard_ns = now_ns
        self.n_bytes += n_bytes
        self.n_messages += 1
        if now_ns - self._second_ns >= 1_000_000_000:
            self._second_ns, self._second_bytes = now_ns, 0
        self._second_bytes += n_bytes
        return self._second_bytes <= MAX_BYTES_PER_S

    def bound(self) -> None:
        """Shed what is held beyond `MAX_HELD_BYTES`."""
        if self._n_held_bytes > MAX_HELD_BYTES:
            for each in self.inbound.values():
                each.shed()

    def silence(self) -> None:
        """Forget all that the sibling owns; it comes back whole."""
        if not self.is_silent:
            self.is_silent, self.inbound, self._asked_ns = True, {}, {}
            for channel in self._channels.values():
                channel.drop(self.id)

    def missing(self, now_ns: int) -> list[str]:
        """Return the channels whose whole is to be asked for now; after that not again for `ASK_NS`."""
        wanted = [
            name for name, each in self.inbound.items() if each.is_behind and self._may_ask(name, now_ns)
        ]
        self._asked_ns.update(dict.fromkeys(wanted, now_ns))
        return wanted

    def may_reply(self, channel: str, now_ns: int) -> bool:
        """Return whether this sibling may get the whole of a channel, and note that it does."""
        last = self._replied_ns.get(channel)
        if last is not None and now_ns - last < REPLY_NS:
            return False
        self._replied_ns[channel] = now_ns
        return True

    def shown(self, now_ns: int) -> Sibling:
        """Return what is shown of the sibling."""
        is_behind = any(each.is_behind for each in self.inbound.values())
        live = SiblingState.BEHIND if is_behind else SiblingState.LIVE
        return Sibling(
            self.id,
            self.name,
            self.version,
            SiblingState.SILENT if self.is_silent else live,
            max(0, now_ns - self.heard_ns) / 1e9,
            sum(each.n_missing for each in self.inbound.values()),
            self.n_bytes,
            self.n_messages,
            self._n_held_bytes,
        )

    @property
    def _n_held_bytes(self) -> int:
        return sum(each.n_bytes for each in self.inbound.values())

    def _may_ask(self, channel: str, now_ns: int) -> bool:
        last = self._asked_ns.get(channel)
        return last is None or now_ns - last >= ASK_NS

    def _inbound(self, name: str, channel: Channel) -> Inbound:
        def malformed(error: MalformedError) -> None:
            self._on_malformed(name, error)

        return Inbound(self.id, channel, malformed)
