"""The files of a trace: one is written until it is full, then the next, and the oldest go."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from .trace_line import BLOCK_SIZE, MooncakeLine, encode_line

PATTERN = "requests-*.jsonl"


class TraceFiles:
    """Traces in a folder, within a size. Not for several threads at once.

    Each file is a trace by itself, and those of one run make one when they are put together in the order of their names, which tell
    when the run began in UTC.

    Args:
        folder: made when the first request is written.
        max_bytes: of all traces in the folder.
        max_files: that they are cut into, at least 2.
        block_size: tokens an id stands for.
        started: wall-clock seconds of the run's begin.
    """

    def __init__(
        self, folder: Path, *, max_bytes: int, max_files: int, block_size: int, started: float
    ) -> None:
        self.folder = folder
        self.current: Path | None = None
        """The file that is written, None before the first request."""
        self.size_bytes = 0
        """Of all traces in the folder, as of the last write."""
        self.max_file_bytes = max_bytes // max_files
        """Of one file, and so of one request."""
        self._max_files, self._block_size = max_files, block_size
        self._run = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(started))
        self._n_made = self._file_bytes = 0
        self._file: int | None = None

    def write(self, line: MooncakeLine) -> bool:
        """Add a request; whether it was short enough for a file.

        Raises:
            OSError: it cannot be written; nothing of it is in a file, and the next request begins another.
        """
        data, file = encode_line(line), self._file
        if file is None or self._file_bytes + len(data) > self.max_file_bytes:
            data = encode_line(self._first(line))
            if len(data) > self.max_file_bytes:
                return False
            file = self._begin()
        self._append(file, data)
        return True

    def close(self) -> None:
        """End the file that is written."""
        if self._file is not None:
            file, self._file = self._file, None
            os.close(file)

    def _first(self, line: MooncakeLine) -> MooncakeLine:
        """A line that begins a file says what its ids stand for."""
        block_size = None if self._block_size == BLOCK_SIZE else self._block_size
        return MooncakeLine(
            line.timestamp, line.input_length, line.output_length, line.hash_ids, block_size=block_size
        )

    def _begin(self) -> int:
        self.close()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._make_room()
        self._n_made += 1
        while (path := self.folder / f"requests-{self._run}-{self._n_made:06}.jsonl").exists():
            self._n_made += 1  # another run began in the same second
        # for the owner alone: lengths and times tell something too
        file = self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        self.current, self._file_bytes = path, 0
        return file

    def _make_room(self) -> None:
        """Delete the oldest files until one more of full size has room, whoever made them."""
        files = sorted((path, path.stat().st_size) for path in self.folder.glob(PATTERN))
        room = self.max_file_bytes * (self._max_files - 1)
        while len(files) >= self._max_files or sum(size for _, size in files) > room:
            files.pop(0)[0].unlink()
        self.size_bytes = sum(size for _, size in files)

    def _append(self, file: int, data: bytes) -> None:
        try:
            written = 0
            while written < len(data):
                written += os.write(file, data[written:])
        except OSError:
            self._give_up(file)
            raise
        self._file_bytes += len(data)
        self.size_bytes += len(data)

    def _give_up(self, file: int) -> None:
        """Leave a file as it was before the last line; an empty one is no trace."""
        path, self.current = self.current, None
        with contextlib.suppress(OSError):
            os.ftruncate(file, self._file_bytes)
            if path is not None and not self._file_bytes:
                path.unlink()
        with contextlib.suppress(OSError):
            self.close()
