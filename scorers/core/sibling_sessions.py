"""Sessions that other processes have bound to endpoints."""

from __future__ import annotations

from hashlib import blake2b


def digest_of(session_id: str) -> str:
    """Return the digest by which processes name a session to each other, 32 characters: the id itself stays here."""
    return blake2b(session_id.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


class SiblingSessions:
    """Digest of a session's id -> endpoint and time of the last request elsewhere. Bounded; false while there are none.

    Args:
        ttl_s: seconds without a request after which a session is forgotten.
        most: sessions to remember.
    """

    def __init__(self, ttl_s: float, *, most: int) -> None:
        self._ttl_s, self._most = ttl_s, most
        self._bound: dict[str, tuple[str, float]] = {}
        """Least recently received first."""

    def __bool__(self) -> bool:
        return bool(self._bound)

    def take(self, digest: str, endpoint: str, used_at: float, now: float) -> None:
        """Take a use of a session in another process, unless a later one is known. Cost: O(1) amortised."""
        before = self._bound.get(digest)
        if before is not None and before[1] >= used_at:
            return
        self._bound.pop(digest, None)
        self._bound[digest] = endpoint, used_at
        while self._bound:
            oldest = next(iter(self._bound))
            if len(self._bound) <= self._most and now - self._bound[oldest][1] <= self._ttl_s:
                break
            del self._bound[oldest]

    def of(self, session_id: str) -> tuple[str, float] | None:
        """Return endpoint and time of a session's last request elsewhere, None if there was none."""
        return self._bound.get(digest_of(session_id))

    def uses(self) -> dict[str, tuple[str, float]]:
        """Return what is known: digest -> (endpoint, time)."""
        return dict(self._bound)
