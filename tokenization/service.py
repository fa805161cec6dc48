"""Tokenization of the served model as the process runs it: files, threads and pipeline."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from ..configs.schema import ModelConfig, TokenizationConfig
from .chats.template_process import TemplateProcess
from .configured import chat_options, check_renderer, own_renderer
from .encoding.encoding_pool import EncodingPool
from .encoding.segment_encoder import SegmentEncoder
from .encoding.tokenizer_files import TokenizerFiles
from .errors import TokenizerLoadError
from .pipeline import PromptPipeline
from .remote.client import RemoteTokenizer

log = logging.getLogger(__name__)


class Tokenization:
    """Puts the parts together.

    Args:
        model: whose prompts they are.
        config: how they are tokenized.
        remote: asked for ids that cannot be computed here; None for nobody.

    Raises:
        TokenizerLoadError: the tokenizer cannot be loaded, or what is configured gives other ids than the engine's.
    """

    def __init__(
        self, model: ModelConfig, config: TokenizationConfig, *, remote: RemoteTokenizer | None = None
    ) -> None:
        own = own_renderer(model)
        check_renderer(own, remote)
        self._model, self.remote = model, remote
        self.files = _files(model, config) if own is None or not own.texts else None
        self.pool = EncodingPool(threads=config.threads, timeout_s=config.timeout)
        self._template_process = TemplateProcess() if model.chat.trust_request_template else None
        self.pipeline = PromptPipeline(
            self.files.tokenizer if self.files else None,
            model_names=model.names,
            template_process=self._template_process,
            own_renderer=own,
            remote=remote,
            pool=self.pool,
        )
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
                self._look_for_renderer()

    def close(self) -> None:
        """Let go of the threads, and of the process that renders templates out of requests."""
        self.pool.close()
        if self._template_process is not None:
            self._template_process.close()

    def _look_for_renderer(self) -> None:
        try:
            self.pipeline.own_renderer = own_renderer(self._model)
        except TokenizerLoadError as error:
            log.warning("what is known of the engine's own renderer stays as it was: %s", error)


def _files(model: ModelConfig, config: TokenizationConfig) -> TokenizerFiles | None:
    if not model.tokenizer:
        return None
    return TokenizerFiles(
        Path(model.tokenizer), chat=chat_options(model.chat), cache_bytes=config.cache_mebibytes * 2**20
    )
