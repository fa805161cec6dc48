"""Responses that engines keep in memory: the server that made each one, and alone has it."""

from __future__ import annotations

import re
import time

from ..scorers.core.shared import SharedUses
from ..scorers.core.sibling_sessions import digest_of
from ..tokenization.model import ServerState

MAX_RESPONSES = 65_536
"""Most responses to remember, the latest ones. Engines that store responses keep all of them until they end."""

RESPONSE_ID = "resp_[A-Za-z0-9_-]{1,250}"
"""Source: vLLM and SGLang, whose ids are 32 digits after the prefix unless the client chose one."""

_PATH = re.compile(f"/responses/({RESPONSE_ID})(?=[/?]|$)")
_ID = re.compile(RESPONSE_ID)


class StoredResponses:
    """Id of each response -> address of the server that made it. Bounded; replicas share it by digests of the ids."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[str, float]] = {}
        """Digest -> address, and monotonic seconds at which it was learned; the oldest first."""
        self.shared = SharedUses(self._take, lambda: dict(self._made))

    def __len__(self) -> int:
        """Return the number of responses remembered."""
        return len(self._made)

    def add(self, response_id: str, address: str) -> None:
        """Remember the server of a response."""
        digest, now = digest_of(response_id), time.monotonic()
        self._take(digest, address, now, now)
        self.shared.note(digest, address)

    def address_of(self, response_id: str) -> str | None:
        """Return the address of the server that made a response, None if it is not known."""
        return self._made.get(digest_of(response_id), (None, 0.0))[0]

    def _take(self, digest: str, address: str, at: float, _now: float) -> None:
        self._made.pop(digest, None)
        self._made[digest] = address, at
        if len(self._made) > MAX_RESPONSES:
            del self._made[next(iter(self._made))]


def wanted_response(path: str, state: ServerState) -> str:
    """Return the id of the stored response that a request continues, reads, cancels or deletes; empty if there is none."""
    if state.previous_response:
        return state.previous_response if _ID.fullmatch(state.previous_response) else ""
    found = _PATH.search(path.partition("?")[0]) if "/responses/" in path else None
    return found[1] if found is not None else ""
