"""A file that takes another's place whole, or not at all."""

from __future__ import annotations

import os
from pathlib import Path


class Replacement:
    """New content for a file, written beside it as `NAME.new`; other users of the machine cannot read it.

    Args:
        path: the file; its folder must exist.

    Raises:
        OSError: of every method, as the system says it.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._beside = path, path.with_name(f"{path.name}.new")
        self._beside.unlink(missing_ok=True)  # of a process that was killed while it wrote
        descriptor = os.open(self._beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._file = os.fdopen(descriptor, "wb")
        self.n_bytes = 0

    def write(self, piece: bytes) -> None:
        """Append."""
        self._file.write(piece)
        self.n_bytes += len(piece)

    def commit(self) -> None:
        """Take the file's place; holds after a power cut."""
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
        """Leave the file as it is."""
        self._file.close()
        self._beside.unlink(missing_ok=True)
