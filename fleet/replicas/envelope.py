"""Messages between replicas: a fixed head, three texts, and the payload of a channel.

    magic 3 bytes | version 1 | kind 1 | pool 8 | keys 8 | boot 8 | seq 8 | part 2 | parts 2 | lengths of the texts 3 | texts | payload

All numbers are little-endian. The texts are the sender's name, the id of the addressee (empty for all), and the channel.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum, StrEnum

from .channel import MAX_MESSAGE_BYTES
from .identity import MAX_NAME_BYTES, Identity, replica_id

MAGIC = b"KVR"

_START = struct.Struct("<3sB")
_HEAD = struct.Struct("<3sBBQQQQHHBBB")

MAX_PARTS = 2**16 - 1
"""Most parts of a whole."""


class Kind(IntEnum):
    """Kind of a message."""

    HEARTBEAT = 0
    """The sender lives; its payload has the last sequence number of each channel."""
    DELTA = 1
    """What changed in a channel."""
    WHOLE = 2
    """A part of all that the sender owns in a channel, as of a sequence number."""
    ASK = 3
    """The addressee shall send its wholes of some channels."""
    LETTER = 4
    """For the addressee alone, without a sequence."""
    LEAVE = 5
    """The sender ends."""


class Refused(StrEnum):
    """Reason for not taking a message; the value is a label of a counter."""

    MALFORMED = "malformed"
    TOO_LONG = "too_long"
    VERSION = "version"
    """The sender speaks another version of the protocol."""
    POOL = "pool"
    """The sender serves another pool."""
    KEYS = "keys"
    """The sender computes other block keys: another seed."""
    SAME_NAME = "same_name"
    """The sender has this replica's name, but another life."""
    OLD_LIFE = "old_life"
    """The sender's name has a newer life."""
    TOO_MANY = "too_many"
    """There are too many siblings."""
    TOO_FAST = "too_fast"
    """The sender sends more than a sibling may."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """One message.

    Attributes:
        kind: kind of message.
        name: stable name of the sender.
        boot: life of the sender.
        to: id of the addressee, empty for all.
        channel: name of the channel, empty if the kind has none.
        seq: sequence number in the channel; 0 if the kind has none.
        part: number of this part of a whole, from 0.
        parts: parts of the whole, at least 1.
        payload: of the channel.
    """

    kind: Kind
    name: str
    boot: int
    to: str = ""
    channel: str = ""
    seq: int = 0
    part: int = 0
    parts: int = 1
    payload: bytes = b""

    @property
    def sender(self) -> str:
        """Return the id of the sender."""
        return replica_id(self.name, self.boot)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A message that is not taken.

    Attributes:
        reason: why.
        sender: name of the sender, empty if the message does not tell it.
        text: the reason with the values, for people.
    """

    reason: Refused
    sender: str
    text: str


class Codec:
    """Encodes and decodes the messages of one replica.

    Args:
        identity: of the replica.
    """

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._pool, self._keys = identity.pool_print, identity.keys_print
        self._name = identity.name.encode()

    def encode(
        self,
        kind: Kind,
        payload: bytes = b"",
        *,
        to: str = "",
        channel: str = "",
        seq: int = 0,
        part: int = 0,
        parts: int = 1,
    ) -> bytes:
        """Return a message of this replica; the arguments are those of `Envelope`."""
        own, addressee, topic = self._identity, to.encode(), channel.encode()
        head = _HEAD.pack(
            MAGIC,
            own.protocol,
            kind,
            self._pool,
            self._keys,
            own.boot,
            seq,
            part,
            parts,
            len(self._name),
            len(addressee),
            len(topic),
        )
        return b"".join((head, self._name, addressee, topic, payload))

    def decode(self, data: bytes) -> Envelope | Refusal:
        """Return the message in bytes of anybody, or why it is refused. Never raises."""
        if len(data) > MAX_MESSAGE_BYTES:
            return Refusal(
                Refused.TOO_LONG, "", f"a message has {len(data)} bytes, more than {MAX_MESSAGE_BYTES}"
            )
        if len(data) < _START.size or data[: len(MAGIC)] != MAGIC:
            return _malformed(data)
        own = self._identity
        if data[len(MAGIC)] != own.protocol:
            found = data[len(MAGIC)]
            text = f"a replica speaks version {found} of the protocol, this one version {own.protocol}"
            return Refusal(Refused.VERSION, "", text)
        try:
            return self._read(data)
        except (struct.error, ValueError):
            return _malformed(data)

    def _read(self, data: bytes) -> Envelope | Refusal:
        _, _, kind, pool, keys, boot, seq, part, parts, *lengths = _HEAD.unpack_from(data)
        texts: list[str] = []
        end = _HEAD.size
        for length in lengths:
            begin, end = end, end + length
            texts.append(data[begin:end].decode())
        if end > len(data) or part >= parts or not 0 < lengths[0] <= MAX_NAME_BYTES or "/" in texts[0]:
            return _malformed(data)
        name = texts[0]
        if pool != self._pool:
            text = f"{name} serves another pool than {self._identity.pool!r}"
            return Refusal(Refused.POOL, name, text)
        if keys != self._keys:
            text = f"{name} computes other block keys: its hash seed is not this replica's"
            return Refusal(Refused.KEYS, name, text)
        return Envelope(Kind(kind), name, boot, texts[1], texts[2], seq, part, parts, data[end:])


def sender_of(data: bytes) -> str | None:
    """Return the id of a message's sender, None if it is no message of this version. For transports, which know ids alone."""
    if len(data) < _HEAD.size or data[: len(MAGIC)] != MAGIC:
        return None
    boot, length = struct.unpack_from("<Q", data, 21)[0], data[41]
    try:
        return replica_id(data[_HEAD.size : _HEAD.size + length].decode(), boot)
    except UnicodeDecodeError:
        return None


def _malformed(data: bytes) -> Refusal:
    return Refusal(
        Refused.MALFORMED, "", f"{len(data)} bytes are no message of a replica: {data[:8].hex()}..."
    )
