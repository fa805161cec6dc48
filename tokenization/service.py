"""Tokenization of one served model: files, threads and pipeline."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from ..configs.schema import ModelConfig, TokenizationConfig
from .chats.template_process import TemplateProcess
from .configured import chat_options, check_renderer, own_renderer
from .encoding.context import context_tokens
from .encoding.encoding_pool import EncodingPool
from .encoding.media_tokens import MediaTokens
from .encoding.segment_encoder import EncodingLimits, SegmentEncoder
from .encoding.tokenizer_files import TokenizerFiles
from .errors import TokenizerLoadError
from .pipeline import PromptPipeline
from .reading import Reader
from .remote.client import RemoteTokenizer

log = logging.getLogger(__name__)


class Tokenization:
    """The files, threads and pipeline of one model.

    Args:
        model: the served model.
        config: settings of tokenization.
        remote: gets ids from engines if they cannot be computed here; None without engines.
        reader: renders long chats; None makes one with the defaults.

    Raises:
        TokenizerLoadError: the tokenizer cannot be loaded, or the configuration gives other ids than the engine's.
    """

    def __init__(
        self,
        model: ModelConfig,
        config: TokenizationConfig,
        *,
        remote: RemoteTokenizer | None = None,
        reader: Reader | None = None,
    ) -> None:
        own = own_renderer(model)
        check_renderer(own, remote)
        self._model, self.remote = model, remote
        self.files = _files(model, config) if own is None or not own.texts else None
        self.pool = EncodingPool(
            threads=config.threads, timeout_s=config.timeout, queue_chars=config.max_queued_chars
        )
        self._template_process = TemplateProcess() if model.chat.trust_request_template else None
        self.pipeline = PromptPipeline(
            self.files.tokenizer if self.files else None,
            model_names=model.names,
            template_process=self._template_process,
            own_renderer=own,
            remote=remote,
            pool=self.pool,
            reader=reader,
            media=MediaTokens(config.estimate),
        )
        self._reload_interval_s = config.reload_interval

    @property
    def encoder(self) -> SegmentEncoder | None:
        """The encoder of the model's texts; None if no tokenizer is configured."""
        return self.pipeline.tokenizer.segments if self.pipeline.tokenizer else None

    async def watch(self) -> None:
        """Load changed files, until cancelled."""
        while self.files is not None:
            await asyncio.sleep(self._reload_interval_s)
            tokenizer = await asyncio.to_thread(self.files.reload)
            if tokenizer is not None:
                self.pipeline.tokenizer = tokenizer
                self._update_renderer()

    def close(self) -> None:
        """Stop the threads, and the process that renders templates from requests."""
        self.pool.close()
        if self._template_process is not None:
            self._template_process.close()

    def _update_renderer(self) -> None:
        try:
            self.pipeline.own_renderer = own_renderer(self._model)
        except TokenizerLoadError as error:
            log.warning("the engine's own renderer cannot be determined; the old setting stays: %s", error)


def _files(model: ModelConfig, config: TokenizationConfig) -> TokenizerFiles | None:
    if not model.tokenizer:
        return None
    path = Path(model.tokenizer)
    given = model.max_model_len
    length = context_tokens(path if path.is_dir() else path.parent) if given == "auto" else given
    return TokenizerFiles(
        path,
        chat=chat_options(model.chat),
        cache_bytes=config.cache_mebibytes * 2**20,
        limits=EncodingLimits(config.max_piece_bytes, length),
    )
