"""OpenAI request fields that a simulated server supports, and its responses in the form of vLLM 0.32."""

from __future__ import annotations

import msgspec

from .errors import RequestRefusedError
from .kv_transfer import KvTransferParams

Json = dict[str, object]


class StreamOptions(msgspec.Struct, frozen=True):
    """Options of a streamed response."""

    include_usage: bool = False


class GenerateBody(msgspec.Struct, frozen=True):
    """Fields of both completion APIs other than the prompt; unknown fields are ignored."""

    model: str | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = 1
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    cache_salt: str | None = None
    kv_transfer_params: KvTransferParams | None = None

    @property
    def reply_limit(self) -> int | None:
        """Maximum tokens of the reply; None if the request sets no limit."""
        return self.max_completion_tokens or self.max_tokens


_DECODER = msgspec.json.Decoder(GenerateBody)


def parse_generate(body: bytes) -> GenerateBody:
    """Decode the fields of `body`.

    Raises:
        RequestRefusedError: not a JSON object, a wrong type, or an unsupported value.
    """
    try:
        fields = _DECODER.decode(body)
    except msgspec.ValidationError as error:
        raise RequestRefusedError(str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestRefusedError(f"JSON decode error: {error}") from error
    for name in ("max_tokens", "max_completion_tokens"):
        value: int | None = getattr(fields, name)
        if value is not None and value < 1:
            raise RequestRefusedError(f"{name} must be at least 1, got {value}.", param=name)
    if fields.n not in (None, 1):
        raise RequestRefusedError(
            f"this simulated server returns only one choice, got n={fields.n}", param="n"
        )
    return fields


def error_body(error: RequestRefusedError) -> Json:
    """Return the response body for a rejected request."""
    return {"error": {"message": str(error), "type": error.kind, "param": error.param, "code": error.status}}


def usage(*, prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> Json:
    """Return the `usage` object of a server with `--enable-prompt-tokens-details`."""
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
        "prompt_tokens_details": {
            "cached_tokens": cached_tokens,
            "created_cache_tokens": None,
            "multimodal_tokens": None,
        },
        "completion_tokens_details": None,
    }


class ResponseFormat:
    """Response bodies of one API for one request.

    Args:
        chat: whether the API is `/v1/chat/completions`, otherwise `/v1/completions`.
        request_id: without prefix.
        model: requested name.
        created: seconds since the epoch.
        finish_reason: `length` if the reply ends at the requested limit, otherwise `stop`.
    """

    def __init__(self, *, chat: bool, request_id: str, model: str, created: int, finish_reason: str) -> None:
        self._chat = chat
        self._finish_reason = finish_reason
        self._head: Json = {"id": f"{'chatcmpl' if chat else 'cmpl'}-{request_id}"}
        self._tail: Json = {"created": created, "model": model}

    def whole(
        self,
        text: str,
        usage_body: Json,
        *,
        kv_transfer_params: Json | None = None,
        ec_transfer_params: Json | None = None,
    ) -> Json:
        """Return the body of a response that is not streamed."""
        end: Json = {
            "logprobs": None,
            "finish_reason": self._finish_reason,
            "stop_reason": None,
            "token_ids": None,
        }
        if self._chat:
            message: Json = {"role": "assistant", "content": text, "refusal": None, "reasoning": None}
            choice: Json = {"index": 0, "message": message, **end}
        else:
            choice = {"index": 0, "text": text, **end, "prompt_logprobs": None, "prompt_token_ids": None}
        body = self._body("chat.completion" if self._chat else "text_completion", [choice])
        return {
            **body,
            "service_tier": None,
            "system_fingerprint": None,
            "usage": usage_body,
            "kv_transfer_params": kv_transfer_params,
            "ec_transfer_params": ec_transfer_params,
        }

    def opening(self) -> Json | None:
        """Return the chunk before the first token; None if the API has none."""
        return (
            self._chunk({"delta": {"role": "assistant", "content": ""}}, finish=None) if self._chat else None
        )

    def piece(self, text: str, *, last: bool) -> Json:
        """Return the chunk of one token."""
        finish = self._finish_reason if last else None
        return self._chunk({"delta": {"content": text}} if self._chat else {"text": text}, finish=finish)

    def closing(self, usage_body: Json) -> Json:
        """Return the last chunk, with the usage."""
        return {**self._body(self._chunk_object, []), "usage": usage_body}

    @property
    def _chunk_object(self) -> str:
        return "chat.completion.chunk" if self._chat else "text_completion"

    def _chunk(self, content: Json, *, finish: str | None) -> Json:
        choice: Json = {"index": 0, **content, "logprobs": None, "finish_reason": finish}
        return self._body(self._chunk_object, [choice])

    def _body(self, kind: str, choices: list[Json]) -> Json:
        return {**self._head, "object": kind, **self._tail, "choices": choices}
