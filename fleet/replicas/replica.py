"""This process among its siblings, without I/O: messages in, messages out."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import msgspec
from msgspec import Meta

from .channel import UNREADABLE, Channel, Letters, MalformedError
from .envelope import MAX_PARTS, Codec, Envelope, Kind, Refusal, Refused
from .identity import Identity
from .sibling import Sibling, SiblingLink, SiblingState

log = logging.getLogger(__name__)

HEARTBEAT_NS = 200_000_000
"""Interval of heartbeats."""

SILENT_NS = 1_000_000_000
"""Default time after which a sibling that is not heard counts as gone."""

FORGOTTEN_NS = 600 * 1_000_000_000
"""Time for which a silent sibling, and a refused sender that sends no more, are shown."""

MAX_SIBLINGS = 64
"""Most siblings; the silent ones among them make room for new ones."""

MAX_REFUSED = 16
"""Refused senders that are shown."""

MAX_LOGGED = 64
"""Most refusals that are logged, once for each sender and reason; senders choose their names."""


class Heartbeat(msgspec.Struct, array_like=True):
    """Payload of a heartbeat: version of kvatlas, and the last sequence number of each channel."""

    version: Annotated[str, Meta(max_length=64)]
    seqs: Annotated[dict[str, Annotated[int, Meta(ge=0)]], Meta(max_length=64)]


_HEARTBEATS = msgspec.msgpack.Decoder(Heartbeat)
_QUESTIONS = msgspec.msgpack.Decoder(Annotated[list[str], Meta(max_length=64)])


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message to send.

    Attributes:
        to: id of the sibling, None for all.
        payload: the message, at most `MAX_MESSAGE_BYTES`.
    """

    to: str | None
    payload: bytes


@dataclass(slots=True)
class ReplicaCounters:
    """Counts since the start.

    Attributes:
        received: messages received, refused ones included.
        received_bytes: their bytes.
        sent: messages sent, each once however many siblings get it.
        sent_bytes: their bytes.
        refused: messages refused by `Refused`.
        malformed: payloads that a channel refused, by channel.
        asked: questions for wholes: each stands for at least one lost message or a new sibling.
        wholes: wholes sent, by channel.
        silenced: siblings that fell silent.
    """

    received: int = 0
    received_bytes: int = 0
    sent: int = 0
    sent_bytes: int = 0
    refused: Counter[str] = field(default_factory=Counter[str])
    malformed: Counter[str] = field(default_factory=Counter[str])
    asked: int = 0
    wholes: Counter[str] = field(default_factory=Counter[str])
    silenced: int = 0


class Replica:
    """This process among its siblings. It publishes its channels, and takes theirs. Times are monotonic nanoseconds.

    A sibling's messages are numbered per channel. One that is missing has the whole of the channel asked for. A sibling that is
    not heard is dropped, and comes back whole. No clocks of two hosts are compared.

    Args:
        identity: of this replica.
        channels: name -> channel; names of at most 64 bytes, equal on all replicas.
        letters: name -> receiver of letters.
        silent_ns: time after which a sibling that is not heard is dropped.

    Attributes:
        identity: as above.
        counters: counts since the start.
        on_change: called when a channel has something to send and there was nothing before; `tick` sends it.
    """

    def __init__(
        self,
        identity: Identity,
        channels: Mapping[str, Channel],
        *,
        letters: Mapping[str, Letters] | None = None,
        silent_ns: int = SILENT_NS,
    ) -> None:
        self.identity, self.counters = identity, ReplicaCounters()
        self.on_change: Callable[[], None] = _nothing
        self._channels, self._letters = dict(channels), dict(letters or {})
        self._silent_ns, self._codec = silent_ns, Codec(identity)
        self._seqs = dict.fromkeys(self._channels, 0)
        self._siblings: dict[str, SiblingLink] = {}
        self._lives: dict[str, SiblingLink] = {}
        """The siblings by name, of which one life counts."""
        self._refused: dict[str, tuple[Refusal, int]] = {}
        """Refused senders by name, with the time of their last message."""
        self._logged: set[tuple[str, str]] = set()
        self._beat_ns: int | None = None
        self._ticked_ns: int | None = None
        for channel in self._channels.values():
            channel.listen(self._changed)

    def siblings(self) -> Sequence[Sibling]:
        """Return what is known of the siblings as of the last tick, then of senders whose messages are refused."""
        now_ns = self._ticked_ns or 0
        refused = [
            Sibling(name, name, "", SiblingState.REFUSED, _age_s(at_ns, now_ns), reason=refusal.text)
            for name, (refusal, at_ns) in self._refused.items()
        ]
        return [*(each.shown(now_ns) for each in self._siblings.values()), *refused]

    @property
    def live(self) -> Sequence[str]:
        """Return the ids of the siblings that are heard."""
        return [each.id for each in self._siblings.values() if not each.is_silent]

    # -- messages in ----------------------------------------------------------------------------------------------

    def receive(self, payload: bytes, now_ns: int) -> Sequence[Outgoing]:
        """Take a message of anybody, and return what to send for it. Never raises.

        Args:
            payload: the bytes of the message.
            now_ns: monotonic nanoseconds.
        """
        self.counters.received += 1
        self.counters.received_bytes += len(payload)
        found = self._codec.decode(payload)
        link = found if isinstance(found, Refusal) else self._link(found, now_ns)
        if isinstance(link, Refusal):
            self._refuse(link, now_ns)
        elif link is not None and isinstance(found, Envelope):
            if found.kind is Kind.LEAVE and link.is_silent:
                return []  # it has been told, as by the other of two transports
            if link.heard(len(payload), now_ns):
                return self._counted(self._take(link, found, now_ns))
            self._refuse(Refusal(Refused.TOO_FAST, found.name, f"{found.name} sends too much"), now_ns)
        return []

    def _take(self, link: SiblingLink, message: Envelope, now_ns: int) -> Iterator[Outgoing]:
        if message.to and message.to != self.identity.id:
            return
        match message.kind:
            case Kind.DELTA if (inbound := link.inbound.get(message.channel)) is not None:
                inbound.delta(message.seq, message.payload)
                if not inbound.is_behind:  # the usual case; `tick` requests what other channels miss
                    return
            case Kind.WHOLE if (inbound := link.inbound.get(message.channel)) is not None:
                inbound.whole(message.seq, message.part, message.parts, message.payload)
            case Kind.HEARTBEAT:
                self._heartbeat(link, message.payload)
            case Kind.ASK:
                yield from self._wholes(link, message.payload, now_ns)
            case Kind.LETTER:
                yield from self._letter(link, message, now_ns)
            case Kind.LEAVE:
                self._silence(link)
            case _:  # a channel of a newer kvatlas
                pass
        link.bound()
        yield from self._questions(link, now_ns)

    def _link(self, message: Envelope, now_ns: int) -> SiblingLink | Refusal | None:
        """Return the sibling that sent a message, or why it is none; None if the message is this replica's own."""
        sender, name = message.sender, message.name
        link = self._siblings.get(sender)
        if link is not None:
            return link
        if name == self.identity.name:
            if message.boot == self.identity.boot:
                return None
            text = f"another process has this replica's name, {name!r}; give each replica a name of its own"
            return Refusal(Refused.SAME_NAME, name, text)
        before = self._lives.get(name)
        if before is not None:
            if message.boot < before.boot and not before.is_silent:
                return Refusal(Refused.OLD_LIFE, name, f"{name} has started again since it sent this")
            self._forget(before)
        elif len(self._siblings) >= MAX_SIBLINGS and not self._make_room():
            return Refusal(
                Refused.TOO_MANY, name, f"{name} would be more than the {MAX_SIBLINGS} siblings possible"
            )
        link = SiblingLink(name, message.boot, self._channels, self._malformed, now_ns=now_ns)
        self._siblings[sender] = self._lives[name] = link
        self._refused.pop(name, None)
        return link

    def _heartbeat(self, link: SiblingLink, payload: bytes) -> None:
        try:
            beat = _HEARTBEATS.decode(payload)
        except UNREADABLE:
            self.counters.malformed["heartbeat"] += 1
            return
        if beat.version != link.version:
            link.version = beat.version
            self._compare(link)
        for name, seq in beat.seqs.items():
            if (inbound := link.inbound.get(name)) is not None:
                inbound.told(seq)
        # the sibling knows no channel that it does not name, so that there is nothing to miss
        link.inbound = {name: each for name, each in link.inbound.items() if name in beat.seqs}

    def _compare(self, link: SiblingLink) -> None:
        own, kind = self.identity.version[:64], ("", link.version)
        if link.version != own and kind not in self._logged and len(self._logged) < MAX_LOGGED:
            self._logged.add(kind)
            log.warning(
                "replicas: %s runs kvatlas %s, and this one %s: until both run one version, each leaves out what the other has "
                "learned in another form, such as fits with other terms; this is not logged again for that version",
                link.name, link.version, own,
            )  # fmt: skip

    def _wholes(self, link: SiblingLink, payload: bytes, now_ns: int) -> Iterator[Outgoing]:
        try:
            wanted = _QUESTIONS.decode(payload)
        except UNREADABLE:
            self.counters.malformed["ask"] += 1
            return
        for name in wanted:
            channel = self._channels.get(name)
            if channel is None or not link.may_reply(name, now_ns):
                continue
            self.counters.wholes[name] += 1
            parts = (list(channel.whole()) or [b""])[:MAX_PARTS]
            for number, part in enumerate(parts):
                yield self._message(
                    Kind.WHOLE,
                    part,
                    to=link.id,
                    channel=name,
                    seq=self._seqs[name],
                    part=number,
                    parts=len(parts),
                )

    def _letter(self, link: SiblingLink, message: Envelope, now_ns: int) -> Iterator[Outgoing]:
        receiver = self._letters.get(message.channel)
        if receiver is None:
            return
        try:
            replies = receiver.received(link.id, message.payload, now_ns)
        except MalformedError as error:
            self._malformed(message.channel, error)
            return
        for to, payload in replies:
            yield self._message(Kind.LETTER, payload, to=to, channel=message.channel)

    def _questions(self, link: SiblingLink, now_ns: int) -> Iterator[Outgoing]:
        if missing := link.missing(now_ns):
            self.counters.asked += 1
            yield self._message(Kind.ASK, msgspec.msgpack.encode(missing), to=link.id)

    # -- messages out ---------------------------------------------------------------------------------------------

    def letter(self, name: str, to: str, payload: bytes) -> Sequence[Outgoing]:
        """Return a letter to one sibling, for its receiver of that name."""
        return self._counted([self._message(Kind.LETTER, payload, to=to, channel=name)])

    def tick(self, now_ns: int) -> Sequence[Outgoing]:
        """Return what is due: changes, a heartbeat, questions for what is missing; drop siblings that are silent.

        To be called within 5 ms after `on_change`, and at least each `HEARTBEAT_NS`. Cost without changes: O(siblings).
        """
        return self._counted(self._due(now_ns))

    def leave(self) -> Sequence[Outgoing]:
        """Return the last message, with which the siblings drop this replica at once."""
        return self._counted([self._message(Kind.LEAVE)])

    def _due(self, now_ns: int) -> Iterator[Outgoing]:
        self._drop_silent(now_ns)
        has_siblings = any(not each.is_silent for each in self._siblings.values())
        for name, channel in self._channels.items():
            for payload in channel.drain():
                self._seqs[name] += 1
                if has_siblings:  # one that comes, or that hears this replica unheard, asks for the whole
                    yield self._message(Kind.DELTA, payload, channel=name, seq=self._seqs[name])
        if self._beat_ns is None or now_ns - self._beat_ns >= HEARTBEAT_NS:
            self._beat_ns = now_ns
            yield self._message(
                Kind.HEARTBEAT, msgspec.msgpack.encode(Heartbeat(self.identity.version[:64], self._seqs))
            )
        for link in self._siblings.values():
            yield from self._questions(link, now_ns)

    def _message(self, kind: Kind, payload: bytes = b"", *, to: str = "", **head: str | int) -> Outgoing:
        return Outgoing(to or None, self._codec.encode(kind, payload, to=to, **head))  # type: ignore[arg-type]

    def _counted(self, messages: Sequence[Outgoing] | Iterator[Outgoing]) -> Sequence[Outgoing]:
        found = list(messages)
        self.counters.sent += len(found)
        self.counters.sent_bytes += sum(len(each.payload) for each in found)
        return found

    # -- siblings -------------------------------------------------------------------------------------------------

    def _drop_silent(self, now_ns: int) -> None:
        ticked_ns, self._ticked_ns = self._ticked_ns, now_ns
        if ticked_ns is not None and now_ns - ticked_ns > self._silent_ns // 2:
            # This process stood still. What the siblings sent meanwhile waits to be received.
            for link in self._siblings.values():
                # a message that came before this tick already counts as of now
                link.heard_ns = min(now_ns, link.heard_ns + now_ns - ticked_ns)
        for link in list(self._siblings.values()):
            if now_ns - link.heard_ns > FORGOTTEN_NS:
                self._forget(link)
            elif now_ns - link.heard_ns > self._silent_ns:
                self._silence(link)
        for name, (_, at_ns) in list(self._refused.items()):
            if now_ns - at_ns > FORGOTTEN_NS:
                del self._refused[name]

    def _silence(self, link: SiblingLink) -> None:
        if not link.is_silent:
            self.counters.silenced += 1
            link.silence()

    def _forget(self, link: SiblingLink) -> None:
        link.silence()
        del self._siblings[link.id], self._lives[link.name]

    def _make_room(self) -> bool:
        silent = next((each for each in self._siblings.values() if each.is_silent), None)
        if silent is None:
            return False
        self._forget(silent)
        return True

    def _refuse(self, refusal: Refusal, now_ns: int) -> None:
        self.counters.refused[refusal.reason] += 1
        kind = refusal.sender, refusal.reason
        if kind not in self._logged and len(self._logged) < MAX_LOGGED:
            self._logged.add(kind)
            log.warning("replicas: messages are refused: %s; this is not logged again", refusal.text)
        self._refused.pop(refusal.sender, None)
        self._refused[refusal.sender] = refusal, now_ns
        if len(self._refused) > MAX_REFUSED:
            del self._refused[next(iter(self._refused))]

    def _malformed(self, channel: str, error: MalformedError) -> None:
        self.counters.malformed[channel] += 1
        if self.counters.malformed[channel] == 1:
            log.warning(
                "replicas: a payload of channel %s cannot be read: %s; further ones are counted",
                channel,
                error,
            )

    def _changed(self) -> None:
        self.on_change()


def _age_s(at_ns: int, now_ns: int) -> float:
    return max(0, now_ns - at_ns) / 1e9


def _nothing() -> None:
    pass
