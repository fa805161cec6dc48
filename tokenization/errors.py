"""Errors of tokenization.

    KVAtlasError
    └── TokenizationError
        ├── RequestError             the client's body is invalid; the client gets status 400 with the message
        │   ├── BodyFormatError      not a JSON object, or a field that no engine takes
        │   ├── ModelMissingError    no model name
        │   └── PromptMissingError   no prompt, messages or input, although the path needs one
    ├── MessageFormatError       a protobuf message is malformed; becomes a BodyFormatError
    ├── MessageTooComplexError   a protobuf message has too many fields; a reason for having no prefix
    ├── NotReadError             the request was not read in time
        ├── TokenizerLoadError       the configured tokenizer cannot be used
        ├── RenderError              a chat template cannot be compiled, or fails on a chat
        │   └── RenderTimeoutError   it takes too long
        ├── EncodeError              the tokenizer rejects the text
        │   └── TextTooLongError     the text, or a part of it that cannot be cut, is too long
        ├── EncodeTimeoutError       the text was not encoded in time
        ├── EncoderBusyError         too much text is waiting to be encoded
        └── RemoteError              an engine did not return the token ids of a request

The last six never leave this package: each becomes a reason for having no prefix, since the engine may still accept
the request.
"""

from __future__ import annotations

from ..events.errors import KVAtlasError


class TokenizationError(KVAtlasError):
    """A failure between a request body and its token ids."""


class RequestError(TokenizationError):
    """A request that cannot be routed; the message goes to the client and never quotes the body."""


class BodyFormatError(RequestError):
    """A body that is not a JSON object, or has a field in a form that no engine takes."""


class ModelMissingError(RequestError):
    """A body without a model name."""


class PromptMissingError(RequestError):
    """A body without prompt, messages or input, although the path needs one."""


class MessageFormatError(TokenizationError):
    """A protobuf message, or what gRPC sends before it, that is malformed."""


class MessageTooComplexError(TokenizationError):
    """A protobuf message with too many fields."""


class NotReadError(TokenizationError):
    """A long request that was not read in time, or not queued because too much is already waiting to be read."""


class TokenizerLoadError(TokenizationError):
    """A configured tokenizer that is missing or broken."""


class RenderError(TokenizationError):
    """A chat template that cannot be compiled, or that fails on a chat."""


class RenderTimeoutError(RenderError):
    """A chat template that takes too long."""


class EncodeError(TokenizationError):
    """A text that the tokenizer rejects."""


class TextTooLongError(EncodeError):
    """A text above the limit of a text, or with a part above the limit that cannot be cut."""


class EncodeTimeoutError(TokenizationError):
    """A text that was not encoded in time."""


class EncoderBusyError(TokenizationError):
    """A text that was not queued because too much text is already waiting to be encoded."""


class RemoteError(TokenizationError):
    """An engine that did not return the requested token ids.

    Attributes:
        outcome: label for counters, one of `refused`, `failed`, `unusable`, `unreachable`, `too_large` or `malformed`.
    """

    def __init__(self, outcome: str, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome
