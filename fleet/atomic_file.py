"""Atomic replacement of a file."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


class Replacement:
    """New content of a file, written to `NAME.new` beside it; other users cannot read it.

    Args:
        path: the file to replace; its folder must exist.

    Raises:
        OSError: any method can raise it.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._beside = path, path.with_name(f"{path.name}.new")
        self._beside.unlink(missing_ok=True)  # left by a process that was killed while it wrote
        descriptor = os.open(self._beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._file = os.fdopen(descriptor, "wb")
        self.n_bytes = 0

    def write(self, piece: bytes) -> None:
        """Append to the new content."""
        self._file.write(piece)
        self.n_bytes += len(piece)

    def commit(self) -> None:
        """Replace the file; durable after a power loss."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._beside.replace(self._path)
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def discard(self) -> None:
        """Drop the new content; the file stays as it is."""
        with contextlib.suppress(
            OSError
        ):  # on a full disk, what is buffered cannot be written at the close either
            self._file.close()
        self._beside.unlink(missing_ok=True)
