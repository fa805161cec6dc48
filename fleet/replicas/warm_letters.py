"""Letters between a replica that starts and siblings that may give it their snapshot."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from .channel import MAX_PAYLOAD_BYTES, UNREADABLE, MalformedError

PIECE_BYTES = 512 * 1024
"""Bytes of a snapshot in one letter."""

Number = Annotated[int, Meta(ge=0, lt=2**40)]


class Stage(StrEnum):
    """How far a replica has come since its start."""

    UNDECIDED = "undecided"
    """It looks for a sibling that gives it a snapshot."""
    FILLING = "filling"
    """It fetches the engines' history, after a snapshot or without one."""
    READY = "ready"
    """It knows the fleet, and gives its snapshot."""
    BUSY = "busy"
    """The same, but it gives its snapshot to another replica now."""


class Probe(msgspec.Struct, frozen=True, array_like=True, tag="p"):
    """Question for the stage."""


class Staged(msgspec.Struct, frozen=True, array_like=True, tag="s"):
    """Reply to a `Probe`, and to an `Ask` that cannot be met now."""

    stage: Stage


class Ask(msgspec.Struct, frozen=True, array_like=True, tag="a"):
    """Request for the snapshot, as the transfer of a number that the taker chooses."""

    transfer: Number


class Piece(msgspec.Struct, frozen=True, array_like=True, tag="d"):
    """A part of the snapshot."""

    transfer: Number
    number: Number
    data: Annotated[bytes, Meta(min_length=1, max_length=MAX_PAYLOAD_BYTES)]


class End(msgspec.Struct, frozen=True, array_like=True, tag="e"):
    """The snapshot is complete with so many pieces."""

    transfer: Number
    n_pieces: Number


class More(msgspec.Struct, frozen=True, array_like=True, tag="m"):
    """The first `n_received` pieces are here; `again`: the later ones are to be sent again."""

    transfer: Number
    n_received: Number
    again: bool


class Done(msgspec.Struct, frozen=True, array_like=True, tag="f"):
    """The taker has all pieces and the end."""

    transfer: Number


class Stop(msgspec.Struct, frozen=True, array_like=True, tag="x"):
    """The sender ends the transfer."""

    transfer: Number


Letter = Probe | Staged | Ask | Piece | End | More | Done | Stop

_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[Letter] = msgspec.msgpack.Decoder(Letter)


def encoded(letter: Letter) -> bytes:
    """Return a letter as bytes."""
    return _ENCODER.encode(letter)


def decoded(payload: bytes, sender: str) -> Letter:
    """Return a letter.

    Raises:
        MalformedError: the bytes are none.
    """
    try:
        return _DECODER.decode(payload)
    except UNREADABLE as error:
        raise MalformedError(f"a letter of {sender} about a snapshot: {error}") from None
