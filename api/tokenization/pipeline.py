"""From a request to its token ids: parse, render, encode."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Collection
from concurrent.futures import Executor
from dataclasses import dataclass

from .chat import ChatRenderer
from .errors import EncodeError, RenderError
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
from .tokenizer import ModelTokenizer

INLINE_CHARS = 4096
"""Longest text encoded on the event loop itself: 0.7 ms with the small vocabulary of the tests.

Measured (tokenizers 0.23, one core, best of 7): a prompt of 30,000 tokens, 124,000 characters, takes 21 ms, which is
0.17 µs a character; a vocabulary of 32,000 costs about twice that. Handing a text to a thread costs 0.1 ms.
"""


@dataclass(frozen=True, slots=True)
class _Encoding:
    """A text with the tokenizer that is to encode it."""

    tokenizer: ModelTokenizer
    prompt: TextPrompt

    def run(self) -> array[int] | NoPrompt:
        try:
            return self.tokenizer.encode(self.prompt.text, add_special_tokens=self.prompt.add_special_tokens)
        except EncodeError as error:
            return NoPrompt(NoPrefixReason.ENCODE_FAILED, str(error))


class PromptPipeline:
    """Turns requests for one model into prompts.

    Args:
        tokenizer: of the served model; None when none is configured: then only token ids given by the client count.
        model_names: served names and aliases; another name is taken for an adapter. Empty: every name is the model's.
        trust_request_chat_template: render chat templates that requests bring along. vLLM refuses such requests unless
            started with the option of the same name; templates can hold the process for as long as they like.
        executor: encodes long texts; None uses the event loop's default one.
    """

    def __init__(
        self,
        tokenizer: ModelTokenizer | None,
        *,
        model_names: Collection[str] = (),
        trust_request_chat_template: bool = False,
        executor: Executor | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._model_names = frozenset(model_names)
        self._trust_request_chat_template = trust_request_chat_template
        self._executor = executor

    async def prompt(self, path: str, body: bytes) -> Prompt:
        """The prompt of one HTTP request, with the ids the engine will compute for it.

        Raises:
            RequestError: the body is refused (see `request.parse_body`).
        """
        return await self.tokenize(parse_body(path, body))

    async def tokenize(self, request: ParsedRequest) -> Prompt:
        """The prompt of `request`; long texts are encoded in a thread, so that the event loop goes on."""
        outcome = self._rendered(request.prompt)
        if isinstance(outcome, _Encoding):
            if len(outcome.prompt.text) > INLINE_CHARS:
                outcome = await asyncio.get_running_loop().run_in_executor(self._executor, outcome.run)
            else:
                outcome = outcome.run()
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
        if self._tokenizer is None:
            return NoPrompt(NoPrefixReason.NO_TOKENIZER, "no tokenizer is configured (model.tokenizer)")
        if isinstance(prompt, ChatPrompt):
            rendered = self._render(self._tokenizer.chat, prompt)
            return rendered if isinstance(rendered, NoPrompt) else _Encoding(self._tokenizer, rendered)
        return _Encoding(self._tokenizer, prompt)

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
