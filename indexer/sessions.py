"""The sessions whose requests stored blocks of one publisher, as far as its events name them (vLLM 0.30).

A store is kept as its first block alone: blocks after it belong to the same request up to the first block of another store.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import NamedTuple

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

    def of(self, keys: Iterable[int]) -> list[SessionBlocks]:
        """Return the sessions that stored a prompt's blocks, in order; empty if none is known. Cost: O(blocks)."""
        runs: list[SessionBlocks] = []
        session: str | None = None
        for key in keys if self._starts else ():
            session = self._starts.get(key, session)
            if runs and runs[-1].session == session:
                runs[-1] = SessionBlocks(session, runs[-1].n_blocks + 1)
            else:
                runs.append(SessionBlocks(session, 1))
        return runs

    def take(self, others: Sessions) -> None:
        """Take over the sessions of another state of the same publisher."""
        self._starts = others._starts

    def clear(self) -> None:
        """Forget all."""
        self._starts.clear()
