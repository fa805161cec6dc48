"""Request bodies of the engines' own APIs, which take token ids: vLLM's `/inference/v1/generate`, SGLang's `/generate`.

Source: vLLM 0.32.0 entrypoints/scale_out, SGLang 0.5.23 managers/io_struct.py.
"""

from __future__ import annotations

from typing import Annotated, Any, cast

import msgspec
from msgspec import Meta, Raw
from msgspec.structs import replace

from ...indexer.prefix import MediaSpan
from ..model import NoPrefixReason, TokenPrompt
from .common import (
    ABSENT,
    BodyPrompt,
    Head,
    PromptField,
    TokenId,
    all_computed,
    is_given,
    longest,
    n_choices_of,
    no_prompt,
    token_prompt,
)

Position = Annotated[int, Meta(ge=0)]


class Placeholder(msgspec.Struct):
    """The position of a media item among the tokens."""

    offset: Position
    length: Position


class Features(msgspec.Struct):
    """Media items by kind: the engine's identifiers, and the positions."""

    mm_hashes: dict[str, list[str]]
    mm_placeholders: dict[str, list[Placeholder]]


class Sampling(msgspec.Struct):
    """Parameters of sampling, of which one matters."""

    n: Raw = ABSENT
    prompt_logprobs: Raw = ABSENT


class SamplingBody(Head):
    """A body with parameters of sampling, undecoded."""

    sampling_params: Raw = ABSENT

    def n_choices(self) -> int:
        """See `Head.n_choices`; 1 if each prompt has parameters of its own."""
        return n_choices_of(self._sampling.n)

    @property
    def wants_probabilities(self) -> bool:
        """Whether the response has probabilities of the prompt."""
        return is_given(self._sampling.prompt_logprobs)

    @property
    def _sampling(self) -> Sampling:
        try:
            return _decode_sampling(self.sampling_params)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return Sampling()


_decode_sampling = msgspec.json.Decoder(Sampling).decode


class VllmGenerateBody(SamplingBody):
    """Body of `/inference/v1/generate`, and response of vLLM's render endpoints."""

    token_ids: list[TokenId] = msgspec.field(default_factory=list[TokenId])
    features: Features | None = None
    content_parts: list[dict[str, Any]] | None = None


class SglangGenerateBody(SamplingBody):
    """Body of `/generate`."""

    text: str | list[str] | None = None
    input_ids: list[TokenId | list[TokenId]] | None = None
    input_embeds: Any = None
    image_data: Any = None
    video_data: Any = None
    audio_data: Any = None
    session_params: Any = None
    lora_path: str | list[str | None] | None = None


def vllm_prompt(body: VllmGenerateBody) -> BodyPrompt | None:
    """Return the token ids with their media; None if there are no ids."""
    if not body.token_ids:
        return None
    if body.content_parts:
        return no_prompt(NoPrefixReason.MEDIA, "the engine inserts media into the token ids")
    if body.wants_probabilities:
        return all_computed()
    tokens = token_prompt(body.token_ids).tokens
    media = media_spans(body.features, len(tokens)) if body.features else ()
    if media is None:
        return no_prompt(
            NoPrefixReason.MALFORMED, "features contradict each other or lie outside of token_ids"
        )
    return BodyPrompt(TokenPrompt(tokens, media))


def media_spans(features: Features, n_tokens: int) -> tuple[MediaSpan, ...] | None:
    """Return the items by offset; None if kinds or counts do not match, items overlap, or one lies outside."""
    spans: list[MediaSpan] = []
    for kind, identifiers in features.mm_hashes.items():
        places = features.mm_placeholders.get(kind, [])
        if len(places) != len(identifiers):
            return None
        spans += [
            MediaSpan(identifier, place.offset, place.length)
            for identifier, place in zip(identifiers, places, strict=True)
        ]
    spans.sort(key=lambda span: span.offset)
    end = 0
    for span in spans:
        if span.offset < end:
            return None
        end = span.offset + span.n_tokens
    return tuple(spans) if end <= n_tokens else None


def sglang_prompt(body: SglangGenerateBody) -> BodyPrompt:
    """Return the longest prompt with its adapter; each prompt of a batch may have its own."""
    if body.input_embeds is not None:
        return no_prompt(NoPrefixReason.PROMPT_EMBEDS, "the prompt consists of embeddings")
    if any(data is not None for data in (body.image_data, body.video_data, body.audio_data)):
        return no_prompt(NoPrefixReason.MEDIA, "the engine inserts media into the prompt")
    if body.session_params is not None:
        return no_prompt(NoPrefixReason.STORED_HISTORY, "the request continues a session")
    field = cast("PromptField | None", body.text if body.input_ids is None else body.input_ids)
    if not field:
        return no_prompt(NoPrefixReason.MALFORMED, "the body has neither text nor input_ids")
    found = longest(field, add_special_tokens=True, truncation=None)
    adapters = body.lora_path
    if isinstance(adapters, list):
        adapters = adapters[found.position] if found.position < len(adapters) else None
    return replace(found, lora=adapters)
