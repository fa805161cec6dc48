"""Translation of the `token-producer` plugin of the reference picker into `model.remoteTokenizer` and `tokenization.estimate`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .address import check_base_url
from .decode import decode
from .errors import Problem
from .estimate import EstimateConfig
from .schema import PluginConfig, RemoteTokenizerConfig
from .section import Section

TYPES = frozenset({"token-producer", "tokenizer"})
"""Types of the plugin; the second is the older one."""

DEFAULT_URL = "http://localhost:8000"
"""Server of a producer that names only a model. Source: the reference's default."""


class VllmParams(Section, frozen=True):
    """`vllm`."""

    url: str = DEFAULT_URL
    """Base URL of a server with vLLM's `/render` paths."""
    timeout: str | None = None
    """No effect: `model.remoteTokenizer.timeout`."""
    mm_timeout: str | None = None
    """No effect, as `timeout`."""


class TokenProducerParams(Section, frozen=True):
    """Parameters of the plugin."""

    model_name: str = ""
    """Selects `vllm`; the name has no effect, since requests name their model."""
    vllm: VllmParams | None = None
    """Server that computes token ids."""
    estimate: EstimateConfig = EstimateConfig()
    """Estimates instead of token ids, as `tokenization.estimate`."""
    uds_tokenizer_config: dict[str, Any] = {}
    """No effect: an older server of the reference."""


def is_token_producer(plugin: PluginConfig) -> bool:
    """Return whether the plugin computes tokens."""
    return plugin.type in TYPES


def token_producer_problems(plugin: PluginConfig) -> list[Problem]:
    """Return the problems of the plugin's parameters; paths are relative to them."""
    params = decode(plugin.parameters, TokenProducerParams)
    return params if isinstance(params, list) else []


def remote_tokenizer(plugins: Iterable[PluginConfig]) -> RemoteTokenizerConfig:
    """Return the server of the first valid producer that has one; without such a producer, none.

    A text that is no URL, such as one with a variable to be filled in, is no server.
    """
    for plugin in filter(is_token_producer, plugins):
        params = _params(plugin)
        if params.vllm is not None or (params.model_name and "estimate" not in plugin.parameters):
            url = params.vllm.url if params.vllm is not None else DEFAULT_URL
            try:
                check_base_url(url)
            except ValueError:
                continue
            return RemoteTokenizerConfig(url=url, media=True)
    return RemoteTokenizerConfig()


def estimate(plugins: Iterable[PluginConfig]) -> EstimateConfig:
    """Return the rules of the first valid producer that has some; without such a producer, the defaults."""
    found = (each for each in plugins if is_token_producer(each) and "estimate" in each.parameters)
    return next((_params(each).estimate for each in found), EstimateConfig())


def _params(plugin: PluginConfig) -> TokenProducerParams:
    params = decode(plugin.parameters, TokenProducerParams)
    assert not isinstance(params, list), "checked before"  # noqa: S101
    return params
