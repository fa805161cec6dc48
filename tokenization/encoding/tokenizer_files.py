"""A tokenizer that is reloaded when its files change."""

from __future__ import annotations

import logging
from pathlib import Path

from ...configs.file_watch import FileWatch
from ..chats.chat import ChatOptions
from ..chats.chat_files import MORE_TEMPLATES
from ..errors import TokenizerLoadError
from .segment_cache import CACHE_BYTES
from .segment_encoder import EncodingLimits
from .tokenizer import ModelTokenizer, load_tokenizer

log = logging.getLogger(__name__)

SUFFIXES = frozenset({".json", ".jinja", ".model", ".txt"})
"""Suffixes of the files that a tokenizer may consist of."""


class TokenizerFiles:
    """A tokenizer and its files.

    Args:
        path: local folder or file.
        chat: the engine's options for chat templates; None for its defaults.
        cache_bytes: memory limit of the cache of encoded segments.
        limits: of the texts; None for the defaults.

    Attributes:
        tokenizer: as first loaded.
        n_reloads: number of successful reloads.
        n_failures: number of failed reloads.

    Raises:
        TokenizerLoadError: a file is missing or broken.
    """

    def __init__(
        self,
        path: Path,
        *,
        chat: ChatOptions | None = None,
        cache_bytes: int = CACHE_BYTES,
        limits: EncodingLimits | None = None,
    ) -> None:
        self._path, self._chat, self._cache_bytes, self._limits = path, chat, cache_bytes, limits
        self._watch = FileWatch(path, path / MORE_TEMPLATES, suffixes=SUFFIXES)
        self._watch.mark()
        self.tokenizer = self._load()
        self.n_reloads = self.n_failures = 0

    def reload(self) -> ModelTokenizer | None:
        """Load changed files, and return the tokenizer with an empty cache; None if there is no new tokenizer.

        Called periodically. Files are loaded once they are unchanged between two calls; broken files are tried only once.
        Cost: that of `load_tokenizer` after a change, otherwise some `stat` calls.
        """
        if not self._watch.settled():
            return None
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
        return load_tokenizer(self._path, chat=self._chat, cache_bytes=self._cache_bytes, limits=self._limits)
