"""Checks of models: are their tokenizers usable, and do engines name models and adapters as they are configured?"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from ...configs.schema import ModelConfig
from ...configs.secrets import masked_text
from ...events.errors import TopicError
from ...events.topics import parse_topic
from ...tokenization.configured import chat_options, own_renderer
from ...tokenization.encoding.tokenizer import ModelTokenizer, load_tokenizer
from ...tokenization.errors import TokenizerLoadError
from .check import Check, Finding, State
from .deployment import Deployment

_FOLDER = "model.tokenizer: the folder of the served model, with tokenizer.json"
_WHOLE = (
    "tokenization.threads: more, and tokenization.timeout: longer, or model.remoteTokenizer: {url: endpoints}; "
    "report the model"
)
_NAMED_BY = "vLLM 0.14 or later, whose events name adapters (lora_name)"


def _name(model: ModelConfig) -> str:
    return model.names[0] if model.names else "the model"


def _tokenizers(deployment: Deployment) -> Iterator[Finding]:
    for model in deployment.config.served_models:
        if not model.tokenizer and not model.remote_tokenizer.url:
            yield Finding(
                State.WARN,
                f"{_name(model)}: no tokenizer; prefixes are keyed by bytes, where an endpoint has no events",
                _FOLDER,
            )
        elif (
            not model.tokenizer or deployment.fleet is not None
        ):  # a process does not start with an unusable one
            yield Finding(
                State.OK, f"{_name(model)}: {model.tokenizer or masked_text(model.remote_tokenizer.url)}"
            )
        else:
            yield from _loaded(model)


def _loaded(model: ModelConfig) -> Iterator[Finding]:
    """Load a tokenizer as the process would, and yield the findings."""
    began = time.perf_counter()
    try:
        own = own_renderer(model)
        tokenizer = load_tokenizer(Path(model.tokenizer), chat=chat_options(model.chat))
    except TokenizerLoadError as error:
        yield Finding(State.FAIL, f"{_name(model)}: {error}", _FOLDER)
        return
    took_s = time.perf_counter() - began
    if own is not None and not model.remote_tokenizer.url:
        yield Finding(State.WARN, f"{_name(model)}: {own}", "model.remoteTokenizer: {url: endpoints}")
    elif tokenizer.chat is None:
        yield Finding(
            State.WARN,
            f"{_name(model)}: {model.tokenizer} has no chat template, so that chats have no prefix",
            "model.chat.template: the file that the engine has by --chat-template; or the model's whole folder",
        )
    yield Finding(
        State.OK, f"{_name(model)}: {model.tokenizer}, {_size(tokenizer)}, loaded in {took_s:.1f} s"
    )


def _size(tokenizer: ModelTokenizer) -> str:
    how = "" if tokenizer.segments.is_segmented else ", texts encoded whole"
    how += "" if tokenizer.segments.is_native else ", by the library alone"
    return f"{tokenizer.encoder.get_vocab_size()} tokens{how}"


def _segmented(deployment: Deployment) -> Iterator[Finding]:
    for segmented in deployment.counts.values("kvatlas_tokenizer_segmented"):
        if segmented:
            yield Finding(State.OK, "texts are encoded in segments, those seen before not again")
        else:
            yield Finding(
                State.WARN,
                "in segments, test texts did not get the ids that the tokenizer gives them whole; they are encoded with "
                "fewer cuts or none",
                _WHOLE,
            )


def _topics(deployment: Deployment) -> Iterator[Finding]:
    names = {name for model in deployment.config.served_models for name in (*model.names, *model.adapters)}
    for _, endpoint in deployment.endpoints:
        for rank in endpoint.ranks:
            topic = rank.subscription.topic if rank.subscription is not None else b""
            try:
                model = parse_topic(topic).model
            except TopicError:
                continue  # in connect mode a topic may be anything
            shown = f"{endpoint.name}: publishes as model {model!r}"
            if not model or not names:
                continue
            if model in names:
                yield Finding(State.OK, shown)
            else:
                yield Finding(
                    State.WARN,
                    f"{shown}, configured are {', '.join(map(repr, sorted(names)))}",
                    "endpoints.static[].events: the address of an engine with this model; or model.names: that name too",
                )


def _adapters(deployment: Deployment) -> Iterator[Finding]:
    models = deployment.config.served_models
    listed, shown = {adapter for model in models for adapter in model.adapters}, set[str]()
    for fleet, endpoint in deployment.endpoints:
        named = {adapter for rank in endpoint.ranks for adapter in rank.adapters}
        load = fleet.load(endpoint.name, now=deployment.now)
        served = load.adapters.active if load is not None and load.adapters is not None else frozenset[str]()
        shown |= named | served
        yield from _named(endpoint.name, named, listed if len(models) > 1 else named)
        if endpoint.has_events and served and not named:
            yield Finding(
                State.WARN,
                f"{endpoint.name}: serves {', '.join(sorted(served))}, and its events name no adapter",
                _NAMED_BY,
            )
    if deployment.fleet is not None and (unseen := sorted(listed - shown)):
        yield Finding(State.UNKNOWN, f"no endpoint has shown {', '.join(unseen)} yet")


def _named(endpoint: str, named: set[str], listed: set[str]) -> Iterator[Finding]:
    """Compare the adapters named by an endpoint's events with those that requests can name."""
    numbers = sorted(adapter for adapter in named if adapter.startswith("#"))
    unlisted = sorted(named - listed - set(numbers))
    if numbers:
        evidence = f"{endpoint}: its events name adapters by number alone: {', '.join(numbers)}"
        yield Finding(State.WARN, evidence, _NAMED_BY)
    if unlisted:
        evidence = f"{endpoint}: has blocks of {', '.join(unlisted)}, which no model lists"
        yield Finding(State.WARN, evidence, "models[].adapters: the adapter's name")
    if named and not numbers and not unlisted:
        yield Finding(State.OK, f"{endpoint}: has blocks of {', '.join(sorted(named))}")


CHECKS = (
    Check(
        "tokenizer-there",
        "Has every model a tokenizer that can be used?",
        "no prompt can be matched with what events tell",
        _tokenizers,
        needs_process=False,
    ),
    Check(
        "texts-segmented",
        "Are texts encoded in segments?",
        "long prompts are encoded anew with each request, which takes many times the CPU time",
        _segmented,
    ),
    Check(
        "topics-fit",
        "Do publishers name the models that are configured?",
        "events of another model fill the index with blocks that no request finds",
        _topics,
    ),
    Check(
        "adapters-named",
        "Do events name LoRA adapters as requests do?",
        "blocks of such adapters never match, or match requests for another",
        _adapters,
    ),
)
