"""Parts of tokenization, built from the configuration."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from ..configs.schema import ChatConfig, ModelConfig, RemoteTokenizerConfig
from .chats.chat import ChatOptions
from .chats.chat_files import read_text
from .chats.own_renderer import OwnRenderer, find_own_renderer
from .errors import TokenizerLoadError
from .remote.client import OnOutcome, RemoteOptions, RemoteTokenizer, Targets
from .remote.wire import RemoteApi

log = logging.getLogger(__name__)

ENDPOINTS = "endpoints"
"""Value of `model.remoteTokenizer.url` that sends the requests to the model's own endpoints."""


def chat_options(config: ChatConfig) -> ChatOptions:
    """Return the options that the engines use for chat templates.

    Raises:
        TokenizerLoadError: the template file cannot be read.
    """
    return ChatOptions(
        template=read_text(Path(config.template)) if config.template else None,
        content_parts=None if config.content_format == "auto" else config.content_format == "openai",
        variables=config.template_kwargs,
        hides_forbidden_tools=config.exclude_tools_when_tool_choice_none,
    )


def own_renderer(model: ModelConfig) -> OwnRenderer | None:
    """Return the engines' own renderer for this model; None if they use the model's files.

    Raises:
        TokenizerLoadError: a file is broken.
    """
    folder = Path(model.tokenizer)
    if model.chat.renderer == "engine":
        return OwnRenderer("this model", "model.chat.renderer is engine")
    if model.chat.renderer == "template" or not folder.is_dir() or not model.tokenizer:
        return None
    if not (folder / "config.json").is_file():
        log.warning(
            "%s has no config.json, so kvatlas cannot tell whether engines use this model's chat template; copy the "
            "file there, or set model.chat.renderer", folder,
        )  # fmt: skip
    return find_own_renderer(folder)


def check_renderer(own: OwnRenderer | None, remote: RemoteTokenizer | None) -> None:
    """Check that the token ids of a model with an own renderer can be obtained; log a warning if they cannot.

    Args:
        own: the engines' own renderer; None if they use the model's files.
        remote: client that requests ids from engines; None if this is switched off.

    Raises:
        TokenizerLoadError: the configured API returns other ids than the model gets.
    """
    if own is None:
        return
    if remote is None:
        what = "requests" if own.texts else "chats"
        log.warning(
            "%s: %s are routed without prefix; set model.remoteTokenizer to request token ids from engines, or set "
            "model.chat.renderer to template if the engines use this model's template after all", own, what,
        )  # fmt: skip
    elif own.needs_render and remote.options.api is not RemoteApi.RENDER:
        raise TokenizerLoadError(
            f"{own}, but its /tokenize does not: set model.remoteTokenizer.api to render"
        )


def make_remote(
    config: RemoteTokenizerConfig, *, endpoints: Targets, on_outcome: OnOutcome
) -> RemoteTokenizer | None:
    """Return the client that requests token ids from engines; None if it is switched off.

    Args:
        config: its section of the configuration.
        endpoints: returns the base URLs of the reachable endpoints.
        on_outcome: called after each request.

    Raises:
        TokenizerLoadError: the API key file cannot be read.
    """
    if not config.url:
        return None
    url = config.url.rstrip("/")
    options = RemoteOptions(
        api=RemoteApi(config.api),
        media=config.media,
        timeout_s=config.timeout,
        max_concurrent=config.max_concurrent,
        cache_bytes=config.cache_mebibytes * 2**20,
        failures=config.failures,
        cooldown_s=config.cooldown,
        api_key=read_text(Path(config.api_key_file)).strip() if config.api_key_file else "",
    )
    return RemoteTokenizer(
        endpoints if url == ENDPOINTS else lambda: (url,),
        options=options,
        clock=time.monotonic,
        on_outcome=on_outcome,
    )
