"""Lines out of a stream of bytes that is cut anywhere."""

from __future__ import annotations

from .errors import MalformedError

MAX_LINE_BYTES = 8 * 2**20
"""Longest line taken: etcd keeps objects below 1.5 MiB, and JSON may escape each byte of one by several."""


class Lines:
    """Collects bytes and gives whole lines.

    Args:
        max_bytes: longest line taken.
    """

    def __init__(self, *, max_bytes: int = MAX_LINE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._begun: list[bytes] = []
        self._n_begun = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that `data` completes, without their ends; blank ones are left out.

        Raises:
            MalformedError: a line is longer than the limit.
        """
        first, *others = data.split(b"\n")
        self._begin(first)
        lines: list[bytes] = []
        for begun in others:
            lines.append(b"".join(self._begun))
            self._begun, self._n_begun = [], 0
            self._begin(begun)
        return [line for line in lines if line.strip()]

    @property
    def inside(self) -> bool:
        """Whether a line has begun and not ended."""
        return self._n_begun > 0

    def _begin(self, piece: bytes) -> None:
        self._n_begun += len(piece)
        if self._n_begun > self._max_bytes:
            raise MalformedError(f"a line of the watch is above {self._max_bytes} bytes")
        if piece:
            self._begun.append(piece)
