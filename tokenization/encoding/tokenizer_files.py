"""A tokenizer that is reloaded when its files change."""

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
"""Suffixes of the files that a tokenizer may consist of."""

_Signature = tuple[tuple[str, int, int, int], ...]
"""Path, inode, size and modification time in nanoseconds of each file."""


class TokenizerFiles:
    """A tokenizer and its files.

    Args:
        path: local folder or file.
        chat: the engine's options for chat templates; None for its defaults.
        cache_bytes: memory limit of the cache of encoded segments.

    Attributes:
        tokenizer: as first loaded.
        n_reloads: number of successful reloads.
        n_failures: number of failed reloads.

    Raises:
        TokenizerLoadError: a file is missing or broken.
    """

    def __init__(
        self, path: Path, *, chat: ChatOptions | None = None, cache_bytes: int = CACHE_BYTES
    ) -> None:
        self._path, self._chat, self._cache_bytes = path, chat, cache_bytes
        # Taken before the files are read, so that a change during reading is noticed.
        self._loaded = self._seen = _signature(path)
        self.tokenizer = self._load()
        self.n_reloads = self.n_failures = 0

    def reload(self) -> ModelTokenizer | None:
        """Load changed files, and return the tokenizer with an empty cache; None if there is no new tokenizer.

        Called periodically. Files are loaded once they are unchanged between two calls; broken files are tried only once.
        Cost: that of `load_tokenizer` after a change, otherwise some `stat` calls.
        """
        before, self._seen = self._seen, _signature(self._path)
        if self._seen == self._loaded or self._seen != before:
            return None
        self._loaded = self._seen
        try:
            tokenizer = self._load()
        except TokenizerLoadError as error:
            self.n_failures += 1
            log.warning("keeping the loaded tokenizer, its changed files cannot be used: %s", error)
            return None
        self.n_reloads += 1
        log.info("tokenizer reloaded: %s has changed", self._path)
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
                continue  # removed after it was listed
            found.append((str(file), status.st_ino, status.st_size, status.st_mtime_ns))
    return tuple(found)
