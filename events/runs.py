"""Runs: ordinary messages of one publisher that are applied in one call, without Python objects for each."""

from __future__ import annotations

from typing import NamedTuple


class Run(NamedTuple):
    """The messages that one call has applied.

    Attributes:
        topic: of the last message.
        timestamps: of each message, as `array('d')` in bytes.
        n_events: events in all of them.
        media: that removals may name, in upper case; empty without removals.
        removals: for each message that removed blocks, numbers of 8 bytes: bits of `media` that it removed from, 0 if a block
            was unknown; sizes of the configured tiers before it, and after it.
        adapters: LoRA adapters that the last message names.
        n_applied: events applied of the next message, which is not ordinary.
        n_unknown_amid: removals of unknown blocks among these.
        failure: the exception that ended the last message; its events are not counted.
    """

    topic: bytes
    timestamps: bytes
    n_events: int
    media: list[str]
    removals: bytes
    adapters: list[str]
    n_applied: int
    n_unknown_amid: int
    failure: str | None
