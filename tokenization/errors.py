"""Errors of tokenization.

    KVAtlasError
    └── TokenizationError
        ├── RequestError             the client's body is wrong; the shells answer 400 with the message
        │   ├── BodyFormatError      not a JSON object
        │   ├── ModelMissingError    no model name
        │   └── PromptMissingError   no prompt, messages or input where the path needs one
        ├── TokenizerLoadError       the configured tokenizer cannot be used
        ├── RenderError              a chat template cannot be compiled or does not take this chat
        ├── EncodeError              the tokenizer does not take this text
        ├── EncodeTimeoutError       the text was not encoded in time
        ├── EncoderBusyError         too much text waits to be encoded
        └── RemoteError              an engine did not say what ids a request has

All but the first two stay inside this package once a tokenizer is loaded: they become a reason for having no prefix,
because the engine may still accept the request.
"""

from __future__ import annotations

from ..events.errors import KVAtlasError


class TokenizationError(KVAtlasError):
    """Something is wrong between a request body and its token ids."""


class RequestError(TokenizationError):
    """The client's request cannot be routed; the message is shown to the client and quotes nothing of the body."""


class BodyFormatError(RequestError):
    """The body is not a JSON object."""


class ModelMissingError(RequestError):
    """The body names no model."""


class PromptMissingError(RequestError):
    """The body lacks what the path is about."""


class TokenizerLoadError(TokenizationError):
    """The configured tokenizer is missing or broken."""


class RenderError(TokenizationError):
    """A chat template cannot be compiled, or fails on a chat."""


class EncodeError(TokenizationError):
    """The tokenizer fails on a text."""


class EncodeTimeoutError(TokenizationError):
    """A text was not encoded in time."""


class EncoderBusyError(TokenizationError):
    """Too much text waits to be encoded."""


class RemoteError(TokenizationError):
    """An engine that was asked for token ids did not tell them.

    Attributes:
        outcome: bounded word for counters: `refused`, `failed`, `unusable`, `unreachable`, `too_large` or `malformed`.
    """

    def __init__(self, outcome: str, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome
