"""From a request to its token ids: parse, render, encode."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from .chat import ChatRenderer
from .encoding_pool import EncodingPool
from .errors import EncodeError, EncoderBusyError, EncodeTimeoutError, RenderError, TokenizationError
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
from .request import parse_body
from .segment_encoder import SegmentEncoder
from .tokenizer import ModelTokenizer

_REASONS: Mapping[type[TokenizationError], NoPrefixReason] = {
    EncodeError: NoPrefixReason.ENCODE_FAILED,
    EncodeTimeoutError: NoPrefixReason.TOKENIZE_TIMEOUT,
    EncoderBusyError: NoPrefixReason.TOKENIZER_BUSY,
}


@dataclass(frozen=True, slots=True)
class _Encoding:
    """A text with what is to encode it."""

    encoder: SegmentEncoder
    prompt: TextPrompt

    async def run_in(self, pool: EncodingPool) -> array[int] | NoPrompt:
        """The ids of the text, or why there are none in time."""
        text, adds = self.prompt.text, self.prompt.add_special_tokens
        try:
            return await pool.tokens(self.encoder, text, add_special_tokens=adds)
        except tuple(_REASONS) as error:
            return NoPrompt(_REASONS[type(error)], str(error))

    def run(self) -> array[int] | NoPrompt:
        """The ids of the text, however long it takes."""
        try:
            return self.encoder.tokens(self.prompt.text, add_special_tokens=self.prompt.add_special_tokens)
        except EncodeError as error:
            return NoPrompt(NoPrefixReason.ENCODE_FAILED, str(error))


class PromptPipeline:
    """Turns requests for one model into prompts.

    Args:
        tokenizer: of the served model; None when none is configured: then only token ids given by the client count.
        model_names: served names and aliases; another name is taken for an adapter. Empty: every name is the model's.
        trust_request_chat_template: render chat templates that requests bring along. vLLM refuses such requests unless
            started with the option of the same name; templates can hold the process for as long as they like.
        pool: encodes texts; None makes one with the defaults.

    Attributes:
        tokenizer: as above; may be replaced at any time.
    """

    def __init__(
        self,
        tokenizer: ModelTokenizer | None,
        *,
        model_names: Collection[str] = (),
        trust_request_chat_template: bool = False,
        pool: EncodingPool | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self._model_names = frozenset(model_names)
        self._trust_request_chat_template = trust_request_chat_template
        self._pool = pool or EncodingPool()

    async def prompt(self, path: str, body: bytes) -> Prompt:
        """The prompt of one HTTP request, with the ids the engine will compute for it.

        Raises:
            RequestError: the body is refused (see `request.parse_body`).
        """
        return await self.tokenize(parse_body(path, body))

    async def tokenize(self, request: ParsedRequest) -> Prompt:
        """The prompt of `request`; what is long and new is encoded in threads, within the pool's time budget."""
        outcome = self._rendered(request.prompt)
        if isinstance(outcome, _Encoding):
            outcome = await outcome.run_in(self._pool)
        return self._prompt(request, outcome)

    def tokenize_inline(self, request: ParsedRequest) -> Prompt:
        """The prompt of `request`, encoded by the calling thread."""
        outcome = self._rendered(request.prompt)
        return self._prompt(request, outcome.run() if isinstance(outcome, _Encoding) else outcome)

    def _rendered(self, prompt: AnyPrompt) -> array[int] | NoPrompt | _Encoding:
        if isinstance(prompt, NoPrompt):
            return prompt
        if isinstance(prompt, TokenPrompt):
            return prompt.tokens
        if self.tokenizer is None:
            return NoPrompt(NoPrefixReason.NO_TOKENIZER, "no tokenizer is configured (model.tokenizer)")
        if isinstance(prompt, ChatPrompt):
            rendered = self._render(self.tokenizer.chat, prompt)
            return (
                rendered if isinstance(rendered, NoPrompt) else _Encoding(self.tokenizer.segments, rendered)
            )
        return _Encoding(self.tokenizer.segments, prompt)

    def _render(self, chat: ChatRenderer | None, prompt: ChatPrompt) -> TextPrompt | NoPrompt:
        if prompt.template is not None and not self._trust_request_chat_template:
            return NoPrompt(NoPrefixReason.REQUEST_TEMPLATE, "chat templates out of requests are not trusted")
        if chat is None:
            return NoPrompt(NoPrefixReason.NO_CHAT_TEMPLATE, "the tokenizer has no chat template")
        try:
            return TextPrompt(chat.render(prompt), prompt.add_special_tokens)
        except RenderError as error:
            return NoPrompt(NoPrefixReason.TEMPLATE_FAILED, str(error))

    def _prompt(self, request: ParsedRequest, outcome: array[int] | NoPrompt) -> Prompt:
        if isinstance(outcome, NoPrompt):
            tokens, reason, detail = None, outcome.reason, outcome.detail
        else:
            tokens, reason, detail = outcome, None, ""
        return Prompt(
            model=request.model,
            tokens=tokens,
            lora=self._lora(request.model),
            cache_salt=request.cache_salt,
            stream=request.stream,
            n_prompts=request.n_prompts,
            reason=reason,
            detail=detail,
        )

    def _lora(self, model: str) -> str | None:
        is_base = not model or not self._model_names or model in self._model_names
        return None if is_base else model
