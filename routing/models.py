"""The served models, and which of them a request names."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..configs.schema import KVAtlasConfig, ModelConfig
from ..tokenization.configured import make_remote
from ..tokenization.eventual import Eventual, Known
from ..tokenization.model import NoPrefixReason, NoPrompt, ParsedRequest, Prompt
from ..tokenization.pipeline import estimated_of_body
from ..tokenization.reading import Reader
from ..tokenization.remote.client import OnOutcome
from ..tokenization.service import Tokenization

EndpointUrls = Callable[[Mapping[str, str]], list[str]]
"""Base URLs of the responding endpoints with these labels."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One model.

    Attributes:
        config: its section of the configuration.
        tokenization: tokenizes its prompts.
    """

    config: ModelConfig
    tokenization: Tokenization


class ServedModels:
    """Tokenizes each request for the model that it names. Implements `picker.Tokenizes`.

    A name is that of a model or of an adapter, or `NAME:ADAPTER` as in SGLang. A single model takes every name.

    Args:
        config: validated configuration.
        endpoint_urls: finds engines that can return token ids.
        on_outcome: called after each request to an engine.

    Attributes:
        reader: reads long requests, of all models.

    Raises:
        TokenizerLoadError: a tokenizer cannot be loaded, or what is configured gives other ids than the engine's.
    """

    def __init__(self, config: KVAtlasConfig, *, endpoint_urls: EndpointUrls, on_outcome: OnOutcome) -> None:
        self.reader = Reader(
            max_cost=config.tokenization.max_reading_cost, timeout_s=config.tokenization.timeout
        )
        self._served = [
            _served(model, config, self.reader, endpoint_urls, on_outcome) for model in config.served_models
        ]
        self._by_name = {
            name: each for each in self._served for name in (*each.config.names, *each.config.adapters)
        }

    @property
    def names(self) -> frozenset[str]:
        """Served names and aliases of all models."""
        return frozenset(name for each in self._served for name in each.config.names)

    @property
    def tokenizations(self) -> Sequence[Tokenization]:
        """Tokenization of each model."""
        return [each.tokenization for each in self._served]

    @property
    def differ(self) -> bool:
        """Whether endpoints serve different models."""
        return any(each.config.endpoint_labels for each in self._served)

    def endpoint_labels(self, name: str) -> Mapping[str, str]:
        """Return the labels that an endpoint must have for requests that name this model."""
        served = self._find(name)
        return served.config.endpoint_labels if served is not None else {}

    def tokenize(self, request: ParsedRequest) -> Eventual[Prompt]:
        """Return what `PromptPipeline.tokenize` returns; a request for none of several models has no token ids."""
        served = self._find(request.model)
        if served is not None:
            return served.tokenization.pipeline.tokenize(request)
        known = request.prompt
        is_too_long = isinstance(known, NoPrompt) and known.reason is NoPrefixReason.NAME_TOO_LONG
        prompt = Prompt(
            model=request.model,
            tokens=None,
            lora=request.lora,
            cache_salt=request.cache_salt,
            stream=request.stream,
            n_prompts=request.n_prompts,
            n_choices=request.n_choices,
            reason=NoPrefixReason.NAME_TOO_LONG if is_too_long else NoPrefixReason.UNKNOWN_MODEL,
            n_estimated=estimated_of_body(request),
            detail=f"no model is configured that is called {request.model!r}, and none has an adapter of that name",
        )
        return Known(prompt)

    async def start(self) -> None:
        """Open the connections to engines."""
        for tokenization in self.tokenizations:
            if tokenization.remote is not None:
                await tokenization.remote.start()

    async def watch(self) -> None:
        """Load changed tokenizer files, until cancelled."""
        await asyncio.gather(*(tokenization.watch() for tokenization in self.tokenizations))

    async def stop(self) -> None:
        """Close everything that was opened."""
        for tokenization in self.tokenizations:
            if tokenization.remote is not None:
                await tokenization.remote.stop()
            tokenization.close()
        self.reader.close()

    def _find(self, name: str) -> ServedModel | None:
        if len(self._served) == 1:
            return self._served[0]
        return self._by_name.get(name) or self._by_name.get(name.partition(":")[0])


def _served(
    model: ModelConfig,
    config: KVAtlasConfig,
    reader: Reader,
    endpoint_urls: EndpointUrls,
    on_outcome: OnOutcome,
) -> ServedModel:
    remote = make_remote(
        model.remote_tokenizer,
        endpoints=lambda: endpoint_urls(model.endpoint_labels),
        on_outcome=on_outcome,
    )
    return ServedModel(model, Tokenization(model, config.tokenization, remote=remote, reader=reader))
