"""The sessions whose requests stored blocks of one publisher, as far as its events name them (vLLM 0.30).

A store is kept as its first block alone: blocks after it belong to the same request up to the first block of another store.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NamedTuple, cast

MAX_STARTS = 16_384
"""Stores that are kept per publisher, the latest ones, in at most 6 MB."""


class SessionBlocks(NamedTuple):
    """Consecutive blocks of a prompt that requests of one session stored; `session` is None for requests without one."""

    session: str | None
    n_blocks: int


class Sessions:
    """First block of a store -> its session, the latest stores last. Empty and without cost until an event names a session."""

    def __init__(self) -> None:
        self._starts: dict[int, str | None] = {}

    def __bool__(self) -> bool:
        return bool(self._starts)

    def note(self, key: int, session: str | None) -> None:
        """Note a store; one without session counts only beside others."""
        if not session and not self._starts:
            return
        self._starts.pop(key, None)
        self._starts[key] = sys.intern(session) if session else None
        if len(self._starts) > MAX_STARTS:
            del self._starts[next(iter(self._starts))]

    def of(self, keys: Sequence[int]) -> list[SessionBlocks]:
        """Return the sessions that stored a prompt's blocks, in order; empty if none is known. Cost: O(blocks)."""
        starts = self._starts
        found = [(number, starts[key]) for number, key in enumerate(keys) if key in starts]
        runs: list[SessionBlocks] = []
        begin, session = 0, cast("str | None", None)
        for number, following in found:
            if following != session:
                if number > begin:
                    runs.append(SessionBlocks(session, number - begin))
                begin, session = number, following
        if starts and len(keys) > begin:
            runs.append(SessionBlocks(session, len(keys) - begin))
        return runs

    def take(self, others: Sessions) -> None:
        """Take over the sessions of another state of the same publisher."""
        self._starts = others._starts

    def clear(self) -> None:
        """Forget all."""
        self._starts.clear()
