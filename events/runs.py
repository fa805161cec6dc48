"""Runs: ordinary messages of one publisher that are applied in one call, without Python objects for each."""

from __future__ import annotations

from typing import NamedTuple


class Run(NamedTuple):
    """The messages that one call has applied.

    Attributes:
        topic: of the last message.
        timestamps: of each message, as `array('d')` in bytes.
        n_events: events in all of them.
        removed_media: media from which messages removed blocks, in upper case, if each removed block was known.
        adapters: LoRA adapters that the last message names.
        n_applied: events applied of the next message, which is not ordinary.
        n_unknown_amid: removals of unknown blocks among these.
        failure: the exception that ended the last message; its events are not counted.
    """

    topic: bytes
    timestamps: bytes
    n_events: int
    removed_media: list[str]
    adapters: list[str]
    n_applied: int
    n_unknown_amid: int
    failure: str | None
