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

MUCH_LARGER = 16
"""An upload that holds so many times as much as another needs gives way to it, however young it is."""

MAX_REVOKED = 16
"""Most uploads that give way at once: each is routed at that moment, in about 0.1 ms."""

MAX_COMPARED = 256
"""Most uploads looked at for those that give way, in about 0.02 ms."""

OnRevoked = Callable[[Overload], None]
"""Called with the reason when a stream must route its request without waiting for more of its body."""


def _ignore(_: Overload) -> None:
    return


class Intake:
    """Counts pending requests and held bytes over all streams, and limits both.

    A request is pending while its body is collected in pieces, and until it is routed. If there is no room, the oldest
    uploads give way, if they are slow or hold far more than is asked for. Streams whose bodies or responses are large, and what transports hold, have three
    quarters of the bytes; small bodies find the last quarter free, whatever the others hold. For one event loop; no locks.

    Args:
        max_requests: pending requests at once.
        max_bytes: bytes held at once: bodies of requests and responses, large headers, and what transports add.
        max_seconds: longest time that one body is collected.

    Attributes:
        n_streams: open streams.
        n_requests: pending requests.
        n_bytes: held bytes.
        n_small_bytes: those of small bodies.
        n_spare_bytes: those that small bodies alone may use.
    """

    def __init__(
        self,
        *,
        max_requests: int = DEFAULT_MAX_REQUESTS,
        max_bytes: int = DEFAULT_MAX_BYTES,
        max_seconds: float = DEFAULT_MAX_SECONDS,
    ) -> None:
        self._max_requests, self._max_bytes, self._max_seconds = max_requests, max_bytes, max_seconds
        self.n_spare_bytes = max_bytes // 4
        self._collecting: dict[Share, float] = {}
        """Uploads -> when they began, oldest first."""
        self._now = 0.0
        self._refreshed: list[Callable[[], None]] = []
        self.n_streams = 0
        self.n_requests = 0
        self.n_bytes = self.n_small_bytes = 0

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
        fits_everybody = self.n_bytes + n_bytes <= self._max_bytes - self.n_spare_bytes
        if (
            not fits_everybody
            and not self._fits(n_bytes, is_large=is_large)
            and not self._make_room(
                Overload.HELD_BYTES, asking, n_bytes, lambda: self._fits(n_bytes, is_large=is_large)
            )
        ):
            return False
        self.n_bytes += n_bytes
        return True

    def room(self) -> int:
        """Return the bytes that are free for everybody, negative past the limit."""
        return self._max_bytes - self.n_spare_bytes - self.n_bytes

    def carry(self, n_bytes: int) -> None:
        """Count bytes that the transport holds, negative for those that it holds no more; never refuses."""
        self.n_bytes += n_bytes

    def watch(self, refresh: Callable[[], None]) -> None:
        """Have `refresh` called by `refresh_all`."""
        self._refreshed.append(refresh)

    def refresh_all(self) -> None:
        """Count what transports hold by now."""
        for refresh in self._refreshed:
            refresh()

    def admit(self, asking: Share | None = None) -> bool:
        """Admit a pending request, unless the limit is reached."""
        if self.n_requests >= self._max_requests and not self._make_room(
            Overload.PENDING_REQUESTS, asking, 0, lambda: self.n_requests < self._max_requests
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

    def _fits(self, n_bytes: int, *, is_large: bool) -> bool:
        n_free = self.room() - n_bytes
        if is_large:
            return n_free >= 0
        return n_free + self.n_spare_bytes >= 0 or self.n_small_bytes + n_bytes <= self.n_spare_bytes

    def _make_room(
        self, reason: Overload, asking: Share | None, n_bytes: int, fits: Callable[[], bool]
    ) -> bool:
        """Revoke uploads, oldest first, until `fits()`: slow ones older than `asking`, and those that hold much more."""
        much = MUCH_LARGER * (n_bytes + (asking.n_bytes if asking else 0)) if n_bytes else None
        is_older = True
        n_revoked = 0
        for share, since in list(islice(self._collecting.items(), MAX_COMPARED)):
            is_older = is_older and share is not asking and self._now - since >= SLOW_SECONDS
            if is_older or (much is not None and share.n_bytes >= much):
                share.revoke(reason)
                if fits():
                    return True
                n_revoked += 1
            if n_revoked == MAX_REVOKED or (much is None and not is_older):
                return False
        return False


class Share:
    """One stream's share of the intake. `release` returns all of it, whatever happens to the stream.

    Args:
        intake: of all streams.
        on_revoked: see `OnRevoked`; not called after `release`.

    Attributes:
        n_bytes: held bytes.
    """

    __slots__ = (
        "_intake",
        "_is_collecting",
        "_is_large",
        "_is_open",
        "_is_pending",
        "_on_revoked",
        "n_bytes",
    )

    def __init__(self, intake: Intake, on_revoked: OnRevoked) -> None:
        self._intake, self._on_revoked = intake, on_revoked
        self._is_open = True
        self._is_pending = self._is_collecting = False
        self._is_large = False
        self.n_bytes = 0

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
        is_large = self._is_large or self.n_bytes + n_bytes > SMALL_BYTES
        if not self._intake.hold(n_bytes, is_large=is_large, asking=self):
            return False
        self.n_bytes += n_bytes
        if not is_large:
            self._intake.n_small_bytes += n_bytes
        elif not self._is_large:
            self._is_large = True
            self._intake.n_small_bytes -= self.n_bytes - n_bytes
        return True

    def release(self) -> None:
        """Return held bytes and the pending request: what is held later belongs to the response."""
        if self._is_collecting:
            self.settle()
        if self.n_bytes:
            self._intake.n_bytes -= self.n_bytes
            if not self._is_large:
                self._intake.n_small_bytes -= self.n_bytes
            self.n_bytes = 0
        self._is_large = True
        self._on_revoked = _ignore
        if self._is_pending:
            self._intake.n_requests -= 1
            self._is_pending = False

    def close(self) -> None:
        """Release everything at the end of the stream. Further calls change nothing."""
        self.release()
        if self._is_open:
            self._intake.n_streams -= 1
            self._is_open = False
