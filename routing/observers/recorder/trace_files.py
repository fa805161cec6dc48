"""The files of a trace: each is written until it is full, and the oldest are deleted."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from .trace_line import BLOCK_SIZE, MooncakeLine, encode_line

PATTERN = "requests-*.jsonl"


class TraceFiles:
    """Traces in a folder, within a total size. Not for several threads at once.

    Each file is a trace by itself. The files of one run, joined in the order of their names, are a trace too. The names
    hold the start of the run in UTC.

    Args:
        folder: created when the first request is written.
        max_bytes: most bytes of all traces in the folder.
        max_files: most files in the folder, at least 2.
        block_size: tokens per id.
        started: wall-clock seconds at the start of the run.
    """

    def __init__(
        self, folder: Path, *, max_bytes: int, max_files: int, block_size: int, started: float
    ) -> None:
        self.folder = folder
        self.current: Path | None = None
        """The file being written, None before the first request."""
        self.size_bytes = 0
        """Size of all traces in the folder, as of the last write."""
        self.max_file_bytes = max_bytes // max_files
        """Limit of one file, and so of one request."""
        self._max_files, self._block_size = max_files, block_size
        self._run = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(started))
        self._n_made = self._file_bytes = 0
        self._file: int | None = None

    def write(self, line: MooncakeLine) -> bool:
        """Add a request, and return whether it was short enough for a file.

        Raises:
            OSError: it cannot be written; nothing of it is in a file, and the next request starts a new file.
        """
        data, file = encode_line(line), self._file
        if file is not None and not os.fstat(file).st_nlink:
            file = None  # somebody deleted it, and what is written to it would be lost
        if file is None or self._file_bytes + len(data) > self.max_file_bytes:
            data = encode_line(self._first(line))
            if len(data) > self.max_file_bytes:
                return False
            file = self._begin()
        self._append(file, data)
        return True

    def close(self) -> None:
        """Close the file being written."""
        if self._file is not None:
            file, self._file = self._file, None
            os.close(file)

    def _first(self, line: MooncakeLine) -> MooncakeLine:
        """Return a line that starts a file, with the block size of its ids."""
        block_size = None if self._block_size == BLOCK_SIZE else self._block_size
        return MooncakeLine(
            line.timestamp, line.input_length, line.output_length, line.hash_ids, block_size=block_size
        )

    def _begin(self) -> int:
        self.close()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._free_space()
        self._n_made += 1
        while (path := self.folder / f"requests-{self._run}-{self._n_made:06}.jsonl").exists():
            self._n_made += 1  # another run started in the same second
        # readable by the owner alone: lengths and times reveal something too
        file = self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        self.current, self._file_bytes = path, 0
        return file

    def _free_space(self) -> None:
        """Delete the oldest files, those of other runs first, until one more of full size fits."""
        # names alone would put this run before earlier ones if the clock was set back
        own = f"requests-{self._run}-"
        files = sorted(
            ((path, path.stat().st_size) for path in self.folder.glob(PATTERN)),
            key=lambda each: (each[0].name.startswith(own), each[0]),
        )
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
            self._drop_last_line(file)
            raise
        self._file_bytes += len(data)
        self.size_bytes += len(data)

    def _drop_last_line(self, file: int) -> None:
        """Cut a file to its state before the last line, and delete it if it is empty."""
        path, self.current = self.current, None
        with contextlib.suppress(OSError):
            os.ftruncate(file, self._file_bytes)
            if path is not None and not self._file_bytes:
                path.unlink()
        with contextlib.suppress(OSError):
            self.close()
