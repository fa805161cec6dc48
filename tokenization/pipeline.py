"""From a request to its token ids: parse, render, encode."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Collection, Mapping
from functools import partial

import msgspec

from .chats.chat import ForeignChat
from .chats.own_renderer import OwnRenderer
from .chats.template_process import TemplateProcess
from .chats.time_bound import INLINE_RENDER_S, render_limit_s
from .encoding.byte_form import MAX_BYTES, byte_form, estimated_tokens
from .encoding.encoding_pool import EncodingPool
from .encoding.media_tokens import MediaTokens
from .encoding.segment_encoder import SegmentEncoder
from .encoding.tokenizer import ModelTokenizer
from .encoding.truncation import prompt_of, texts_of
from .errors import (
    EncodeError,
    EncoderBusyError,
    EncodeTimeoutError,
    NotReadError,
    RenderError,
    RenderTimeoutError,
    TextTooLongError,
    TokenizationError,
)
from .eventual import Eventual, Known, Later, recovered
from .model import (
    AnyPrompt,
    ChatPrompt,
    NoPrefixReason,
    NoPrompt,
    ParsedRequest,
    Prompt,
    TextPrompt,
    TokenPrompt,
)
from .reading import Reader
from .remote.client import RemoteTokenizer
from .requests.request import parse_body

_REASONS: Mapping[type[TokenizationError], NoPrefixReason] = {
    EncodeError: NoPrefixReason.ENCODE_FAILED,
    TextTooLongError: NoPrefixReason.TOO_LONG,
    EncodeTimeoutError: NoPrefixReason.TOKENIZE_TIMEOUT,
    EncoderBusyError: NoPrefixReason.TOKENIZER_BUSY,
}
_ENCODE_ERRORS = tuple(_REASONS)

_WITHOUT_TOKENS = frozenset({
    NoPrefixReason.UNKNOWN_PATH, NoPrefixReason.NO_GENERATION, NoPrefixReason.PROMPT_EMBEDS, NoPrefixReason.MEDIA,
})  # fmt: skip
"""Reasons with which the length of a body says nothing of the tokens in it."""


class _Encoding(msgspec.Struct, frozen=True, gc=False):
    """A text with its encoder."""

    encoder: SegmentEncoder
    prompt: TextPrompt

    def tokens(self, pool: EncodingPool) -> Eventual[TokenPrompt | NoPrompt]:
        """Return the ids that the engine will compute, or why they are not known in time."""
        return recovered(_ENCODE_ERRORS, _not_encoded, self._encoded, pool)

    def _encoded(self, pool: EncodingPool) -> Eventual[TokenPrompt | NoPrompt]:
        prompt = self.prompt
        if prompt.truncation is None:
            self.encoder.check_fits(prompt.text)
        if (prompt.fork is not None or prompt.truncation is not None) and len(texts_of(prompt)) > 1:
            return Later(self._all_encoded(pool))
        tokens = pool.tokens(self.encoder, prompt.text, add_special_tokens=prompt.add_special_tokens)
        return tokens.map(lambda ids: prompt_of(prompt, (ids,)))

    async def _all_encoded(self, pool: EncodingPool) -> TokenPrompt | NoPrompt:
        async def encoded(text: str, *, adds: bool) -> array[int]:
            return await pool.tokens(self.encoder, text, add_special_tokens=adds)

        # All at once, so that they share one time budget.
        works = [asyncio.ensure_future(encoded(text, adds=adds)) for text, adds in texts_of(self.prompt)]
        try:
            return prompt_of(self.prompt, await asyncio.gather(*works))
        finally:
            for work in works:  # after an error of one, nobody waits for the others
                work.cancel()


class _Foreign(msgspec.Struct, frozen=True, gc=False):
    """A chat with a template from the request, with its renderer and encoder."""

    process: TemplateProcess
    encoder: SegmentEncoder
    chat: ForeignChat

    async def rendered(self) -> _Encoding | NoPrompt:
        """Render the text; returns why there is none if rendering fails."""
        try:
            return _Encoding(self.encoder, await self.process.rendered(self.chat))
        except RenderError as error:
            return _failed(error)


class PromptPipeline:
    """Turns requests for one model into prompts.

    Args:
        tokenizer: of the served model; None if none is configured: then only token ids from the client count.
        model_names: served names and aliases; any other name is an adapter's. Empty: every name is the model's.
        template_process: renders chat templates from requests; None: such requests have no prefix. vLLM refuses such
            templates unless started with `--trust-request-chat-template`.
        own_renderer: an engine's own code that writes this model's prompts; None if there is none.
        remote: gets ids from engines if they cannot be computed here; None without engines.
        pool: encodes texts; None makes one with the defaults.
        reader: renders long chats; None makes one with the defaults.
        media: estimates the tokens of media in prompts without ids; None for the defaults.

    Attributes:
        tokenizer, own_renderer: as above; may be replaced at any time.
    """

    def __init__(
        self,
        tokenizer: ModelTokenizer | None,
        *,
        model_names: Collection[str] = (),
        template_process: TemplateProcess | None = None,
        own_renderer: OwnRenderer | None = None,
        remote: RemoteTokenizer | None = None,
        pool: EncodingPool | None = None,
        reader: Reader | None = None,
        media: MediaTokens | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self._model_names = frozenset(model_names)
        self._template_process = template_process
        self.own_renderer = own_renderer
        self._remote, self._pool, self._reader = remote, pool or EncodingPool(), reader or Reader()
        self._media = media or MediaTokens()

    async def prompt(self, path: str, body: bytes) -> Prompt:
        """Return the prompt of one HTTP request, with the ids that the engine will compute.

        Raises:
            RequestError: the body is refused (see `request.parse_body`).
        """
        return await self.tokenize(parse_body(path, body))

    def tokenize(self, request: ParsedRequest) -> Eventual[Prompt]:
        """Return the prompt of `request`; long new text is encoded in threads, within the pool's time budget.

        While an engine computes the ids, the text is encoded here too: the engine may not respond in time.
        """
        ids: Eventual[TokenPrompt | NoPrompt]
        rendered = self._rendered_inline(request)
        if rendered is None:
            in_thread = Later(self._rendered_in_thread(request))
            ids = in_thread.then(lambda known: self._rendered_ids(request, known))
        else:
            ids = self._rendered_ids(request, rendered)
        return ids.map(lambda found: self._prompt(request, found))

    def _rendered_inline(
        self, request: ParsedRequest
    ) -> TokenPrompt | NoPrompt | _Encoding | _Foreign | None:
        """Return the rendered prompt, None if rendering takes too long for the event loop."""
        if not isinstance(request.prompt, ChatPrompt):
            return self._rendered(request.prompt)
        if request.is_heavy:
            return None
        before = render_limit_s.set(INLINE_RENDER_S)
        try:
            return self._rendered(request.prompt)
        except RenderTimeoutError:
            return None
        finally:
            render_limit_s.reset(before)

    async def _rendered_in_thread(
        self, request: ParsedRequest
    ) -> TokenPrompt | NoPrompt | _Encoding | _Foreign:
        n_bytes = len(request.raw.body) if request.raw is not None else 0
        try:
            return await self._reader.run(partial(self._rendered, request.prompt), n_bytes=n_bytes)
        except RenderTimeoutError as error:
            return _failed(error)
        except NotReadError as error:
            return NoPrompt(NoPrefixReason.TOKENIZE_TIMEOUT, str(error))

    def _rendered_ids(
        self, request: ParsedRequest, rendered: TokenPrompt | NoPrompt | _Encoding | _Foreign
    ) -> Eventual[TokenPrompt | NoPrompt]:
        if isinstance(rendered, _Foreign):
            return Later(rendered.rendered()).then(lambda known: self._ids(request, known))
        return self._ids(request, rendered)

    def _ids(
        self, request: ParsedRequest, known: TokenPrompt | NoPrompt | _Encoding
    ) -> Eventual[TokenPrompt | NoPrompt]:
        remote = self._remote
        if remote is not None and remote.may_help(known.prompt if isinstance(known, _Encoding) else known):
            return Later(self._with_remote(remote, request, known))
        return known.tokens(self._pool) if isinstance(known, _Encoding) else Known(known)

    async def _with_remote(
        self, remote: RemoteTokenizer, request: ParsedRequest, known: TokenPrompt | NoPrompt | _Encoding
    ) -> TokenPrompt | NoPrompt:
        async def own() -> TokenPrompt | NoPrompt:
            return await known.tokens(self._pool) if isinstance(known, _Encoding) else known

        remote_ids, own_ids = await asyncio.gather(remote.tokenize(request), own())
        return remote_ids or own_ids

    def _rendered(self, prompt: AnyPrompt) -> TokenPrompt | NoPrompt | _Encoding | _Foreign:
        if isinstance(prompt, (NoPrompt, TokenPrompt)):  # a union of types would be made anew each time
            return prompt
        if self.own_renderer is not None and (self.own_renderer.texts or isinstance(prompt, ChatPrompt)):
            return NoPrompt(NoPrefixReason.OWN_RENDERER, str(self.own_renderer))
        if self.tokenizer is None:
            return NoPrompt(NoPrefixReason.NO_TOKENIZER, "no tokenizer is configured (model.tokenizer)")
        if isinstance(prompt, ChatPrompt):
            return self._chat(self.tokenizer, prompt)
        return _Encoding(self.tokenizer.segments, prompt)

    def _chat(self, tokenizer: ModelTokenizer, prompt: ChatPrompt) -> NoPrompt | _Encoding | _Foreign:
        process = self._template_process
        if prompt.template is not None and process is None:
            return NoPrompt(NoPrefixReason.REQUEST_TEMPLATE, "chat templates from requests are not trusted")
        if tokenizer.chat is None:
            return NoPrompt(NoPrefixReason.NO_CHAT_TEMPLATE, "the tokenizer has no chat template")
        try:
            if process is not None and prompt.template is not None:
                foreign = tokenizer.chat.foreign(prompt)
                if foreign is not None:
                    return _Foreign(process, tokenizer.segments, foreign)
            return _Encoding(tokenizer.segments, tokenizer.chat.render(prompt))
        except RenderTimeoutError:
            raise
        except RenderError as error:
            return _failed(error)

    def _prompt(self, request: ParsedRequest, outcome: TokenPrompt | NoPrompt) -> Prompt:
        known = outcome if isinstance(outcome, TokenPrompt) else None
        missing = outcome if isinstance(outcome, NoPrompt) else None
        unencoded, n_estimated, extent = None, 0, request.extent
        if known is None or known.cut is not None:
            unencoded, n_estimated = self._estimated(request, missing)
            extent = extent if unencoded is not None else 1.0
        return Prompt(
            model=request.model,
            tokens=known.tokens if known else None,
            media=known.media if known else (),
            lora=request.lora or self._lora(request.model),
            cache_salt=request.cache_salt,
            stream=request.stream,
            n_prompts=request.n_prompts,
            n_choices=request.n_choices,
            cut=known.cut if known else None,
            reason=missing.reason if missing else None,
            detail=missing.detail if missing else "",
            unencoded=unencoded if missing else None,
            n_estimated=n_estimated,
            keyed_as="" if self._model_names else request.model,
            extent=extent,
        )

    def _estimated(self, request: ParsedRequest, missing: NoPrompt | None) -> tuple[bytes | None, int]:
        """Return the byte form of a prompt, None if there is none, and its estimated tokens."""
        source = request.prompt
        if isinstance(source, (TextPrompt, ChatPrompt)) and not self._is_too_long(request, missing):
            form = byte_form(source, self._media)
            if form is not None:
                n_tokens = estimated_tokens(len(form))
                limit = source.truncation
                return form, n_tokens if limit is None else min(n_tokens, limit.n_tokens)
        return None, estimated_of_body(request)

    def _is_too_long(self, request: ParsedRequest, missing: NoPrompt | None) -> bool:
        """Return whether the bytes of a prompt without ids are too many to make keys of them."""
        n_bytes = len(request.raw.body) if request.raw is not None else 0
        is_too_long = missing is not None and missing.reason is NoPrefixReason.TOO_LONG
        return is_too_long or n_bytes > min(self._pool.max_chars, MAX_BYTES)

    def _lora(self, model: str) -> str | None:
        """Return the adapter that a model's name stands for: an unconfigured name, or `MODEL:ADAPTER` as in SGLang."""
        if not model or not self._model_names or model in self._model_names:
            return None
        # the longest, since one name may begin with another and a colon: every process must find the same adapter
        bases = (name for name in self._model_names if model.startswith(f"{name}:"))
        base = max(bases, key=len, default=None)
        return model if base is None else model[len(base) + 1 :].strip() or None


def estimated_of_body(request: ParsedRequest) -> int:
    """Return the tokens that a prompt is estimated to have by its message or the length of the whole body; 0 if these say nothing."""
    prompt = request.prompt
    if request.n_estimated:
        return request.n_estimated
    if request.raw is None or (isinstance(prompt, NoPrompt) and prompt.reason in _WITHOUT_TOKENS):
        return 0
    return estimated_tokens(len(request.raw.body))


def _not_encoded(error: TokenizationError) -> NoPrompt:
    return NoPrompt(_REASONS[type(error)], str(error))


def _failed(error: RenderError) -> NoPrompt:
    return NoPrompt(NoPrefixReason.TEMPLATE_FAILED, str(error))
