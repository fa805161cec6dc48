"""Budget of all streams together: pending requests, held bytes, and the time of uploads."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from ...routing.router import Overload

DEFAULT_MAX_REQUESTS = 10_000
DEFAULT_MAX_BYTES = 512 * 1024 * 1024
DEFAULT_MAX_SECONDS = 30.0

SMALL_BYTES = 1024 * 1024
"""Largest body that may use the last quarter of the held bytes; 200,000 tokens of text take less."""

SLOW_SECONDS = 1.0
"""Age of an upload that gives way to new requests. Bursts of ordinary uploads are younger, and none of them gives way."""

MAX_REVOKED = 16
"""Most uploads that give way at once: each is routed at that moment, in about 0.1 ms."""

OnRevoked = Callable[[Overload], None]
"""Called with the reason when a stream must route its request without waiting for more of its body."""


def _ignore(_: Overload) -> None:
    return


class Intake:
    """Counts pending requests and held bytes over all streams, and limits both.

    A request is pending while its body is collected in pieces, and until it is routed. If there is no room, the oldest
    uploads give way, if they are slow. Streams whose bodies or responses are large share three quarters of the bytes.
    For one event loop; no locks.

    Args:
        max_requests: pending requests at once.
        max_bytes: bytes held at once: bodies of requests and responses, large headers, and what transports add.
        max_seconds: longest time that one body is collected.

    Attributes:
        n_streams: open streams.
        n_requests: pending requests.
        n_bytes: held bytes.
    """

    def __init__(
        self,
        *,
        max_requests: int = DEFAULT_MAX_REQUESTS,
        max_bytes: int = DEFAULT_MAX_BYTES,
        max_seconds: float = DEFAULT_MAX_SECONDS,
    ) -> None:
        self._max_requests, self._max_bytes, self._max_seconds = max_requests, max_bytes, max_seconds
        self._max_large_bytes = max_bytes - max_bytes // 4
        self._collecting: dict[Share, float] = {}
        """Uploads -> when they began, oldest first."""
        self._now = 0.0
        self.n_streams = 0
        self.n_requests = 0
        self.n_bytes = 0

    def share(self, on_revoked: OnRevoked = _ignore) -> Share:
        """Return the share of a new stream, empty at first. Close it with the stream."""
        self.n_streams += 1
        return Share(self, on_revoked)

    def hold(self, n_bytes: int, *, is_large: bool = False, asking: Share | None = None) -> bool:
        """Hold more bytes, unless they exceed the limit. Return them with `carry`.

        Args:
            n_bytes: how many.
            is_large: whether they belong to a large body or a response.
            asking: the share that holds them, None outside of ext-proc streams.
        """
        limit = self._max_large_bytes if is_large else self._max_bytes
        if self.n_bytes + n_bytes > limit and not self._make_room(
            Overload.HELD_BYTES, asking, lambda: self.n_bytes + n_bytes <= limit
        ):
            return False
        self.n_bytes += n_bytes
        return True

    def room(self) -> int:
        """Return the bytes that are free, negative past the limit."""
        return self._max_bytes - self.n_bytes

    def carry(self, n_bytes: int) -> None:
        """Count bytes that the transport holds, negative for those that it holds no more; never refuses."""
        self.n_bytes += n_bytes

    def admit(self, asking: Share | None = None) -> bool:
        """Admit a pending request, unless the limit is reached."""
        if self.n_requests >= self._max_requests and not self._make_room(
            Overload.PENDING_REQUESTS, asking, lambda: self.n_requests < self._max_requests
        ):
            return False
        self.n_requests += 1
        return True

    def collect(self, share: Share, now: float) -> None:
        """Take note of an upload that begins."""
        self._now = now
        self._collecting[share] = now

    def settle(self, share: Share) -> None:
        """Take note of its end."""
        del self._collecting[share]

    def expire(self, now: float) -> bool:
        """Revoke uploads that have lasted too long; returns whether some of them are left for the next call."""
        self._now = now
        oldest = list(islice(self._collecting.items(), MAX_REVOKED))
        for share, since in oldest:
            if now - since < self._max_seconds:
                return False
            share.revoke(Overload.UPLOAD_TIME)
        return len(oldest) == MAX_REVOKED

    def _make_room(self, reason: Overload, asking: Share | None, fits: Callable[[], bool]) -> bool:
        """Revoke the oldest of the slow uploads until `fits()`. If `asking` is the oldest, nobody gives way to it."""
        for share, since in list(islice(self._collecting.items(), MAX_REVOKED)):
            if share is asking or self._now - since < SLOW_SECONDS:
                return False
            share.revoke(reason)
            if fits():
                return True
        return False


class Share:
    """One stream's share of the intake. `release` returns all of it, whatever happens to the stream.

    Args:
        intake: of all streams.
        on_revoked: see `OnRevoked`; not called after `close`.
    """

    __slots__ = (
        "_intake",
        "_is_collecting",
        "_is_open",
        "_is_pending",
        "_is_routed",
        "_n_bytes",
        "_on_revoked",
    )

    def __init__(self, intake: Intake, on_revoked: OnRevoked) -> None:
        self._intake, self._on_revoked = intake, on_revoked
        self._is_open = True
        self._is_pending = self._is_collecting = False
        self._is_routed = False
        self._n_bytes = 0

    def admit(self) -> bool:
        """Become a pending request, unless the limit is reached."""
        self._is_pending = self._intake.admit(self)
        return self._is_pending

    def collect(self, *, now: float) -> None:
        """Begin to collect the body; the share can be revoked until `settle`."""
        self._is_collecting = True
        self._intake.collect(self, now)

    def settle(self) -> None:
        """Collect no more of the body. Further calls change nothing."""
        if self._is_collecting:
            self._is_collecting = False
            self._intake.settle(self)

    def revoke(self, reason: Overload) -> None:
        """Have the stream continue without the rest of its body."""
        self.settle()
        self._on_revoked(reason)

    def hold(self, n_bytes: int) -> bool:
        """Hold more bytes, unless they exceed the limit."""
        is_large = self._is_routed or self._n_bytes + n_bytes > SMALL_BYTES
        if not self._intake.hold(n_bytes, is_large=is_large, asking=self):
            return False
        self._n_bytes += n_bytes
        return True

    def release(self) -> None:
        """Return held bytes and the pending request: what is held later belongs to the response."""
        if self._is_collecting:
            self.settle()
        self._is_routed = True
        if self._n_bytes:
            self._intake.n_bytes -= self._n_bytes
            self._n_bytes = 0
        if self._is_pending:
            self._intake.n_requests -= 1
            self._is_pending = False

    def close(self) -> None:
        """Release everything at the end of the stream. Further calls change nothing."""
        self.release()
        self._on_revoked = _ignore
        if self._is_open:
            self._intake.n_streams -= 1
            self._is_open = False
