"""Tokenization of the served model as the process runs it: files, threads and pipeline."""

from __future__ import annotations

import asyncio
from pathlib import Path

from ...configs.schema import ModelConfig, TokenizationConfig
from .encoding_pool import EncodingPool
from .pipeline import PromptPipeline
from .segment_encoder import SegmentEncoder
from .tokenizer_files import TokenizerFiles


class Tokenization:
    """Puts the parts together.

    Args:
        model: whose prompts they are.
        config: how they are tokenized.

    Raises:
        TokenizerLoadError: the tokenizer cannot be loaded.
    """

    def __init__(self, model: ModelConfig, config: TokenizationConfig) -> None:
        cache_bytes = config.cache_mebibytes * 2**20
        self.files = (
            TokenizerFiles(Path(model.tokenizer), cache_bytes=cache_bytes) if model.tokenizer else None
        )
        self.pool = EncodingPool(threads=config.threads, timeout_s=config.timeout)
        tokenizer = self.files.tokenizer if self.files else None
        self.pipeline = PromptPipeline(tokenizer, model_names=model.names, pool=self.pool)
        self._reload_interval_s = config.reload_interval

    @property
    def encoder(self) -> SegmentEncoder | None:
        """What encodes the model's texts; None when no tokenizer is configured."""
        return self.pipeline.tokenizer.segments if self.pipeline.tokenizer else None

    async def watch(self) -> None:
        """Load changed files, until cancelled."""
        while self.files is not None:
            await asyncio.sleep(self._reload_interval_s)
            tokenizer = await asyncio.to_thread(self.files.reload)
            if tokenizer is not None:
                self.pipeline.tokenizer = tokenizer

    def close(self) -> None:
        """Let go of the threads."""
        self.pool.close()
