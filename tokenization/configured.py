"""Parts of tokenization as a configuration asks for them."""

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
"""`model.remoteTokenizer.url` of a model whose endpoints are asked themselves."""


def chat_options(config: ChatConfig) -> ChatOptions:
    """How the engines were told to use chat templates.

    Raises:
        TokenizerLoadError: the template's file cannot be read.
    """
    return ChatOptions(
        template=read_text(Path(config.template)) if config.template else None,
        content_parts=None if config.content_format == "auto" else config.content_format == "openai",
        variables=config.template_kwargs,
        hides_forbidden_tools=config.exclude_tools_when_tool_choice_none,
    )


def own_renderer(model: ModelConfig) -> OwnRenderer | None:
    """Whether the engines write this model's prompts with code of their own.

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
            "%s has no config.json, so it cannot be told whether engines write this model's chats by its template; copy "
            "the file there, or set model.chat.renderer", folder,
        )  # fmt: skip
    return find_own_renderer(folder)


def check_renderer(own: OwnRenderer | None, remote: RemoteTokenizer | None) -> None:
    """Say what a model with code of its own needs.

    Args:
        own: what is known of it; None for a model without.
        remote: asked for token ids; None for nobody.

    Raises:
        TokenizerLoadError: what is asked gives other ids than the model sees.
    """
    if own is None:
        return
    if remote is None:
        what = "requests" if own.texts else "chats"
        log.warning(
            "%s: %s are routed without prefix; set model.remoteTokenizer to have engines asked for their token ids, or "
            "model.chat.renderer to template if the engines use this model's template all the same", own, what,
        )  # fmt: skip
    elif own.needs_render and remote.options.api is not RemoteApi.RENDER:
        raise TokenizerLoadError(
            f"{own}, and its /tokenize knows nothing of that: set model.remoteTokenizer.api to render"
        )


def make_remote(
    config: RemoteTokenizerConfig, *, endpoints: Targets, on_outcome: OnOutcome
) -> RemoteTokenizer | None:
    """What asks engines for token ids; None when it is switched off.

    Args:
        config: its section of the configuration.
        endpoints: base URLs of the endpoints that answer.
        on_outcome: told of every question.

    Raises:
        TokenizerLoadError: the key's file cannot be read.
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
