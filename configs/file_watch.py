"""Detection of file changes by `stat`."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator
from pathlib import Path

_OneFile = tuple[str, int, int, int, int]
"""Path, device, inode, size and modification time in nanoseconds."""

FileState = tuple[_OneFile, ...]
"""State of every file that exists; empty if none does."""


class FileWatch:
    """Watch on files that other programs replace while this process runs.

    A file has changed if its device, inode, size or modification time in nanoseconds differ. Links are followed, so that
    a change of any link or folder on the way counts, such as the `..data` link of a mounted Secret or ConfigMap. A
    missing or unreachable file is a state like any other: a file that vanishes has changed, and so has one that appears.
    There are no notifications: they miss network file systems and folders that are swapped.

    Cost of `changed` and `settled`: one `stat` per path; for a folder a listing and one `stat` per file.

    Args:
        paths: files, which may be missing. With `suffixes` a folder stands for the files in it, without its sub-folders.
        suffixes: endings of the files that count in a folder.
    """

    def __init__(self, *paths: Path, suffixes: Collection[str] = ()) -> None:
        self._paths, self._suffixes = paths, suffixes
        self._last_seen: FileState | None = None
        self.reported: FileState | None = None
        """State when a change was last reported; before that, every state is a change."""

    def mark(self) -> None:
        """Report nothing of the files as they are now. Call it before the files are read for the first time."""
        self.reported = self._last_seen = self.state()

    def changed(self) -> bool:
        """Return whether the files differ from the reported state, and report the new one.

        For files that are replaced as a whole. Call it before reading: the next call reports a change during the read.
        """
        self._last_seen = self.state()
        return self._report()

    def settled(self) -> bool:
        """Return whether the files differ from the reported state but not from the last call, and report the new one.

        For files that are written in place: a file that grows from call to call is not reported until it has stopped.
        """
        before, self._last_seen = self._last_seen, self.state()
        return self._last_seen == before and self._report()

    def _report(self) -> bool:
        before, self.reported = self.reported, self._last_seen
        return self.reported != before

    def state(self) -> FileState:
        """Return the present state, without a report."""
        return tuple(sorted(state for path in self._paths for state in self._states(path)))

    def _states(self, path: Path) -> Iterator[_OneFile]:
        """Yield the state of the file, or of the files in the folder."""
        found = _stat(path)
        if found is not None and self._suffixes and stat.S_ISDIR(found.st_mode):
            for file in _files_in(path, self._suffixes):
                if (inside := _stat(file)) is not None:
                    yield _one_file(file, inside)
        elif found is not None:
            yield _one_file(path, found)


def _files_in(folder: Path, suffixes: Collection[str]) -> list[Path]:
    try:
        return [file for file in folder.iterdir() if file.suffix in suffixes]
    except OSError:  # removed since its `stat`
        return []


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None


def _one_file(path: Path, found: os.stat_result) -> _OneFile:
    return str(path), found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
