"""Budget of all streams together: pending requests and held bytes."""

from __future__ import annotations

DEFAULT_MAX_REQUESTS = 10_000
DEFAULT_MAX_BYTES = 512 * 1024 * 1024


class Intake:
    """Counts pending requests and held bytes over all streams, and limits both.

    A request is pending from its headers until it is routed. For one event loop; no locks.

    Args:
        max_requests: pending requests at once.
        max_bytes: bytes of request and response bodies held at once.

    Attributes:
        n_streams: open streams.
        n_requests: pending requests.
        n_bytes: held bytes.
    """

    def __init__(
        self, *, max_requests: int = DEFAULT_MAX_REQUESTS, max_bytes: int = DEFAULT_MAX_BYTES
    ) -> None:
        self._max_requests, self._max_bytes = max_requests, max_bytes
        self.n_streams = 0
        self.n_requests = 0
        self.n_bytes = 0

    def share(self) -> Share:
        """Return the share of a new stream, empty at first. Close it with the stream."""
        self.n_streams += 1
        return Share(self)

    def admit(self) -> bool:
        """Admit a pending request, unless the limit is reached."""
        if self.n_requests >= self._max_requests:
            return False
        self.n_requests += 1
        return True

    def hold(self, n_bytes: int) -> bool:
        """Hold more bytes, unless they exceed the limit."""
        if self.n_bytes + n_bytes > self._max_bytes:
            return False
        self.n_bytes += n_bytes
        return True

    def room(self) -> int:
        """Return the bytes that are free, negative past the limit."""
        return self._max_bytes - self.n_bytes

    def carry(self, n_bytes: int) -> None:
        """Count bytes that the transport holds, negative for those that it holds no more; never refuses."""
        self.n_bytes += n_bytes


class Share:
    """One stream's share of the intake. `release` returns all of it, whatever happens to the stream."""

    __slots__ = ("_intake", "_is_open", "_is_pending", "_n_bytes")

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self._is_open = True
        self._is_pending = False
        self._n_bytes = 0

    def admit(self) -> bool:
        """Become a pending request, unless the limit is reached."""
        self._is_pending = self._intake.admit()
        return self._is_pending

    def hold(self, n_bytes: int) -> bool:
        """Hold more bytes, unless they exceed the limit."""
        if not self._intake.hold(n_bytes):
            return False
        self._n_bytes += n_bytes
        return True

    def release(self) -> None:
        """Return held bytes and the pending request. Further calls change nothing."""
        self._intake.n_bytes -= self._n_bytes
        self._n_bytes = 0
        if self._is_pending:
            self._intake.n_requests -= 1
            self._is_pending = False

    def close(self) -> None:
        """Release everything at the end of the stream. Further calls change nothing."""
        self.release()
        if self._is_open:
            self._intake.n_streams -= 1
            self._is_open = False
