"""The files of a tokenizer, loaded again when they change."""

from __future__ import annotations

import logging
from pathlib import Path

from ..chats.chat import ChatOptions
from ..chats.chat_files import MORE_TEMPLATES
from ..errors import TokenizerLoadError
from .segment_cache import CACHE_BYTES
from .tokenizer import ModelTokenizer, load_tokenizer

log = logging.getLogger(__name__)

SUFFIXES = frozenset({".json", ".jinja", ".model", ".txt"})
"""Kinds of files that a tokenizer is made from."""

_Signature = tuple[tuple[str, int, int, int], ...]
"""Path, inode, size and time of change in nanoseconds of every file."""


class TokenizerFiles:
    """A tokenizer and the files it came from.

    Args:
        path: local folder or file.
        chat: how the engine was told to use chat templates; None for its defaults.
        cache_bytes: bound of the memory for encoded segments.

    Attributes:
        tokenizer: as first loaded.
        n_reloads: new files taken.
        n_failures: new files that could not be used.

    Raises:
        TokenizerLoadError: a file is missing or broken.
    """

    def __init__(
        self, path: Path, *, chat: ChatOptions | None = None, cache_bytes: int = CACHE_BYTES
    ) -> None:
        self._path, self._chat, self._cache_bytes = path, chat, cache_bytes
        # Read before the files are, so that a change meanwhile counts as one.
        self._loaded = self._seen = _signature(path)
        self.tokenizer = self._load()
        self.n_reloads = self.n_failures = 0

    def reload(self) -> ModelTokenizer | None:
        """The tokenizer out of changed files, with nothing remembered; None when there is no other than before.

        To be called from time to time. Files that still change between two calls are left alone, and files that cannot
        be used are tried once. Cost: that of `load_tokenizer` after a change, some `stat` calls else.
        """
        before, self._seen = self._seen, _signature(self._path)
        if self._seen == self._loaded or self._seen != before:
            return None
        self._loaded = self._seen
        try:
            tokenizer = self._load()
        except TokenizerLoadError as error:
            self.n_failures += 1
            log.warning("the tokenizer stays as it was, its changed files cannot be used: %s", error)
            return None
        self.n_reloads += 1
        log.info("the tokenizer was loaded again: %s has changed", self._path)
        return tokenizer

    def _load(self) -> ModelTokenizer:
        return load_tokenizer(self._path, chat=self._chat, cache_bytes=self._cache_bytes)


def _signature(path: Path) -> _Signature:
    folders = (path, path / MORE_TEMPLATES)
    files = [path] if path.is_file() else [file for folder in folders for file in folder.glob("*")]
    found: list[tuple[str, int, int, int]] = []
    for file in sorted(files):
        if file.suffix in SUFFIXES:
            try:
                status = file.stat()
            except FileNotFoundError:
                continue  # removed since it was listed
            found.append((str(file), status.st_ino, status.st_size, status.st_mtime_ns))
    return tuple(found)
