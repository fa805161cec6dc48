"""What a replica says about the configuration that was changed over REST, as a value and as bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from .channel import MAX_PAYLOAD_BYTES, UNREADABLE, MalformedError

MAX_NUMBER = 2**40
"""Higher numbers of generations are refused: a sibling that says one has a fault, and all would have to go on from it."""

MAX_CHANGES_BYTES = MAX_PAYLOAD_BYTES // 2
"""Bound on all that is changed over REST together, as bytes: a word with a proposal beside it is one message."""


class Stamp(NamedTuple):
    """Name of one state of the configuration; the greatest is the newest.

    Attributes:
        number: generation of the configuration; 0 before any change.
        replica: id of the replica that made the change.
    """

    number: int = 0
    replica: str = ""


class Changes(msgspec.Struct, frozen=True, array_like=True):
    """All that was changed over REST, as of a stamp: key -> value in JSON."""

    stamp: Stamp = Stamp()
    values: dict[str, bytes] = {}

    @property
    def is_large(self) -> bool:
        """Whether it is beyond `MAX_CHANGES_BYTES`. Cost: O(bytes)."""
        return len(_ENCODER.encode(self)) > MAX_CHANGES_BYTES

    def with_(self, changed: Mapping[str, bytes | None], stamp: Stamp) -> Changes:
        """Return the changes with other values for some keys; None removes a key."""
        values = {**self.values, **changed}
        return Changes(stamp, {key: value for key, value in values.items() if value is not None})


class Proposal(msgspec.Struct, frozen=True, array_like=True):
    """A change that its replica wants in force everywhere.

    Attributes:
        stamp: of the state that it makes.
        base: the state that it changes.
        changed: key -> new value in JSON, None to remove it.
    """

    stamp: Stamp
    base: Stamp
    changed: dict[str, bytes | None]


class Vote(NamedTuple):
    """Answer to a change: its stamp, and why it is refused; empty if it is accepted."""

    stamp: Stamp
    refusal: str = ""


class Word(msgspec.Struct, frozen=True, array_like=True):
    """What one replica says.

    Attributes:
        name: of the replica, for people.
        generation: of the configuration in force there.
        digest: of the settings in force there that siblings have in common; replicas that decide alike have the same.
        changes: in force there.
        refused: newer changes that could not be put in force there, and why; None if there are none.
        proposal: its own, None if it has none.
        votes: id of a replica -> the answer to its proposal.
        is_starting: whether it does not vote yet; it takes the newest changes before it decides for requests.
    """

    name: str
    generation: int = 1
    digest: str = ""
    changes: Changes = Changes()
    refused: Vote | None = None
    proposal: Proposal | None = None
    votes: dict[str, Vote] = {}
    is_starting: bool = False


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Word)


def encoded(word: Word) -> bytes:
    """Return the word as the payload of a message."""
    return _ENCODER.encode(word)


def decoded(payload: bytes, owner: str) -> Word:
    """Return the word of a sibling.

    Raises:
        MalformedError: the bytes are no word, or one that no replica says.
    """
    try:
        word = _DECODER.decode(payload)
    except UNREADABLE as error:
        raise MalformedError(f"a word of {owner} about its configuration: {error}") from None
    numbers = [word.generation, word.changes.stamp.number]
    if word.proposal is not None:
        numbers.append(word.proposal.stamp.number)
        if word.proposal.stamp.replica != owner:
            raise MalformedError(f"{owner} proposes a change for {word.proposal.stamp.replica!r}")
    if not all(0 <= number < MAX_NUMBER for number in numbers):
        raise MalformedError(f"{owner} has generation {max(numbers)}, beyond {MAX_NUMBER}")
    return word
