"""Tokenization of a simulated model, and replies that look like language."""

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
from .media import with_words
from .words import prose


class ModelText(Protocol):
    """The methods of a tokenizer that a server needs."""

    def tokenize(self, path: str, body: bytes) -> array[int]:
        """Return the token ids of the prompt in a request body, as the engine hashes them.

        Raises:
            RequestRefusedError: there is no prompt that can be tokenized.
        """
        ...

    def reply(self, prompt: array[int], n_tokens: int) -> array[int]:
        """Return a reply of `n_tokens` tokens, always the same for the same prompt."""
        ...

    def pieces(self, tokens: Sequence[int]) -> Iterator[str]:
        """Yield the text that each token adds; empty if it does not complete a character."""
        ...


class TokenizerText:
    """`ModelText` for a model folder.

    Each prompt is encoded as a whole, without kvatlas's caches, so an error in these shows as a missed hit.
    """

    def __init__(self, folder: Path) -> None:
        self._tokenizer: ModelTokenizer = load_tokenizer(folder)

    def tokenize(self, path: str, body: bytes) -> array[int]:
        """See `ModelText.tokenize`."""
        try:
            prompt = parse_body(path, body).prompt
            match prompt:
                case TokenPrompt():
                    return prompt.tokens
                case TextPrompt():
                    return self._encode_prompt(prompt)
                case ChatPrompt():
                    return self._encode_prompt(self._render(with_words(prompt)))
                case NoPrompt():
                    raise RequestRefusedError(prompt.detail)
        except (RequestError, RenderError) as error:
            raise RequestRefusedError(str(error)) from error

    def reply(self, prompt: array[int], n_tokens: int) -> array[int]:
        """See `ModelText.reply`. The same tokens, except perhaps the last, result if the client sends the text back."""
        rng = Random(blake2b(prompt.tobytes(), digest_size=8).digest())
        n_words = n_tokens  # a word is at least one token
        return self._encode(prose(rng, n_words), add_special_tokens=False)[:n_tokens]

    def pieces(self, tokens: Sequence[int]) -> Iterator[str]:
        """See `ModelText.pieces`."""
        stream = DecodeStream(skip_special_tokens=True)
        for token in tokens:
            yield stream.step(self._tokenizer.encoder, token) or ""

    def _render(self, prompt: ChatPrompt) -> TextPrompt:
        if self._tokenizer.chat is None:
            raise RequestRefusedError("the model has no chat template")
        return self._tokenizer.chat.render(prompt)

    def _encode_prompt(self, prompt: TextPrompt) -> array[int]:
        if prompt.fork is not None:
            raise RequestRefusedError("the model supports only text")
        encoded = [self._encode(text, add_special_tokens=adds) for text, adds in texts_of(prompt)]
        return prompt_of(prompt, encoded).tokens

    def _encode(self, text: str, *, add_special_tokens: bool) -> array[int]:
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
