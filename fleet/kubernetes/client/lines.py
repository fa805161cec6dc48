"""Splitting of a byte stream into lines."""

from __future__ import annotations

from .errors import MalformedError

MAX_LINE_BYTES = 8 * 2**20
"""Longest line accepted: etcd limits objects to 1.5 MiB, and JSON may escape each byte by several."""


class Lines:
    """Buffer that collects bytes and returns complete lines.

    Args:
        max_bytes: longest line accepted.
    """

    def __init__(self, *, max_bytes: int = MAX_LINE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._begun: list[bytes] = []
        self._n_begun = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that `data` completes, without line ends and blank lines.

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
        """Whether an incomplete line is buffered."""
        return self._n_begun > 0

    def _begin(self, piece: bytes) -> None:
        self._n_begun += len(piece)
        if self._n_begun > self._max_bytes:
            raise MalformedError(f"a line of the watch has more than {self._max_bytes} bytes")
        if piece:
            self._begun.append(piece)
