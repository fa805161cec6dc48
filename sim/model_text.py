"""The text side of a simulated model: requests to token ids, and replies that look like language."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import Protocol

from tokenizers.decoders import DecodeStream

from ..tokenization.encoding.tokenizer import ModelTokenizer, load_tokenizer
from ..tokenization.encoding.truncation import prompt_of, texts_of
from ..tokenization.errors import RenderError, RequestError
from ..tokenization.model import ChatPrompt, NoPrompt, TextPrompt, TokenPrompt
from ..tokenization.requests.request import parse_body
from .errors import RequestRefusedError
from .words import prose


class ModelText(Protocol):
    """What a server needs of its model's tokenizer."""

    def tokenize(self, path: str, body: bytes) -> array[int]:
        """Token ids of the prompt in a request body, as the engine hashes them.

        Raises:
            RequestRefusedError: there is no prompt that can be tokenized.
        """
        ...

    def reply(self, prompt: array[int], n_tokens: int) -> array[int]:
        """The `n_tokens` tokens the model answers to `prompt`; always the same for the same prompt."""
        ...

    def pieces(self, tokens: Sequence[int]) -> Iterator[str]:
        """The text each token adds; empty where a character is not complete yet."""
        ...


class TokenizerText:
    """`ModelText` over a model folder.

    Every prompt is encoded whole: nothing is shared with the caches kvatlas keeps, so a mistake there shows as a
    missed hit.
    """

    def __init__(self, folder: Path) -> None:
        self._tokenizer: ModelTokenizer = load_tokenizer(folder)

    def tokenize(self, path: str, body: bytes) -> array[int]:
        """As in `ModelText`."""
        try:
            prompt = parse_body(path, body).prompt
            match prompt:
                case TokenPrompt():
                    return prompt.tokens
                case TextPrompt():
                    return self._encode_prompt(prompt)
                case ChatPrompt():
                    return self._encode_prompt(self._render(prompt))
                case NoPrompt():
                    raise RequestRefusedError(prompt.detail)
        except (RequestError, RenderError) as error:
            raise RequestRefusedError(str(error)) from error

    def reply(self, prompt: array[int], n_tokens: int) -> array[int]:
        """As in `ModelText`. A client that sends the text back gets these tokens again, but perhaps the last."""
        rng = Random(blake2b(prompt.tobytes(), digest_size=8).digest())
        n_words = n_tokens  # a word is at least one token
        return self._encode(prose(rng, n_words), add_special_tokens=False)[:n_tokens]

    def pieces(self, tokens: Sequence[int]) -> Iterator[str]:
        """As in `ModelText`."""
        stream = DecodeStream(skip_special_tokens=True)
        for token in tokens:
            yield stream.step(self._tokenizer.encoder, token) or ""

    def _render(self, prompt: ChatPrompt) -> TextPrompt:
        if self._tokenizer.chat is None:
            raise RequestRefusedError("the model has no chat template")
        return self._tokenizer.chat.render(prompt)

    def _encode_prompt(self, prompt: TextPrompt) -> array[int]:
        if prompt.fork is not None:
            raise RequestRefusedError("the model reads text alone")
        encoded = [self._encode(text, add_special_tokens=adds) for text, adds in texts_of(prompt)]
        return prompt_of(prompt, encoded).tokens

    def _encode(self, text: str, *, add_special_tokens: bool) -> array[int]:
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
