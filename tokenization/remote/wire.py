"""Requests to engines for token ids, and their responses.

There are two APIs. `render` (`/v1/chat/completions/render` and the like) returns the token ids of a complete request body,
with its media. `tokenize` (`/tokenize`) is older and supports less.
Source: vLLM 0.32 entrypoints/scale_out/render and entrypoints/serve/tokenize; SGLang 0.5.23 has the latter.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b
from typing import Any

import msgspec
from msgspec import Raw

from ..errors import RemoteError
from ..model import ChatPrompt, ParsedRequest, RawRequest, TextPrompt, TokenPrompt
from ..requests.common import TokenId
from ..requests.native import VllmGenerateBody, media_spans

CHAT_PATH = "/v1/chat/completions"
COMPLETIONS_PATH = "/v1/completions"
RENDERED_PATHS = frozenset({CHAT_PATH, COMPLETIONS_PATH, "/v1/responses", "/v1/messages"})
"""Paths for which the engine has a `/render` endpoint."""

NOT_IN_THE_PROMPT = frozenset(
    "ec_transfer_params frequency_penalty kv_transfer_params logit_bias logprobs metadata min_p n presence_penalty"
    " priority prompt_cache_key prompt_logprobs repetition_penalty request_id safety_identifier seed service_tier"
    " session_id stop stop_sequences store stream stream_options temperature top_k top_logprobs top_p use_beam_search"
    " user vllm_xargs".split()
)
"""Fields that do not change the prompt. They are not sent, so requests that differ only in them share a cache entry."""


OLD_REASONING = "reasoning_content"
"""Older name of a message's `reasoning`."""


class RemoteApi(Enum):
    """The engine's API that is used."""

    RENDER = "render"
    TOKENIZE = "tokenize"


@dataclass(frozen=True, slots=True)
class RemoteRequest:
    """One request to an engine for token ids."""

    path: str
    body: bytes

    @property
    def digest(self) -> bytes:
        """Cache key: requests with equal digests have equal responses. Cost: 1 ms per megabyte."""
        digest = blake2b(self.path.encode(), digest_size=16)
        digest.update(b"\0")  # separator; no path contains it
        digest.update(self.body)
        return digest.digest()


class _TokenizeResponse(msgspec.Struct):
    """The response of `/tokenize`."""

    tokens: list[TokenId]


_encode = msgspec.json.Encoder().encode
_fields = msgspec.json.Decoder(dict[str, Raw]).decode
_messages = msgspec.json.Decoder(list[dict[str, Any]]).decode
_variables = msgspec.json.Decoder(dict[str, Any] | None).decode
_rendered = msgspec.json.Decoder(VllmGenerateBody).decode
_rendered_list = msgspec.json.Decoder(list[VllmGenerateBody]).decode
_tokenized = msgspec.json.Decoder(_TokenizeResponse).decode


def remote_request(api: RemoteApi, request: ParsedRequest) -> RemoteRequest | None:
    """Build the engine request for the ids of `request`; None if this API cannot return them.

    Cost: one pass over the body.
    """
    try:
        return _request(api, request)
    except (msgspec.DecodeError, UnicodeError, RecursionError):  # a skipped field, a lone surrogate
        return None


def _request(api: RemoteApi, request: ParsedRequest) -> RemoteRequest | None:
    prompt, raw = request.prompt, request.raw
    if isinstance(prompt, TextPrompt):
        return _text_request(api, request.model, prompt)
    if raw is None or isinstance(prompt, TokenPrompt):
        return None
    if api is RemoteApi.RENDER:
        # With thinking disabled, vLLM's render returns other ids than its chat endpoint uses.
        differs = (
            isinstance(prompt, ChatPrompt)
            and prompt.anthropic is not None
            and prompt.anthropic.disables_thinking
        )
        return _render_request(raw) if raw.path in RENDERED_PATHS and not differs else None
    return (
        _tokenize_request(raw, prompt) if raw.path == CHAT_PATH and isinstance(prompt, ChatPrompt) else None
    )


def read_response(path: str, body: bytes) -> TokenPrompt:
    """Decode the token ids of a response.

    Args:
        path: path of the request.
        body: body of the response.

    Raises:
        RemoteError: the response does not have the format of this path.
    """
    try:
        if path == "/tokenize":
            return TokenPrompt(array("I", _tokenized(body).tokens))
        rendered = _rendered_list(body)[0] if path.startswith(COMPLETIONS_PATH) else _rendered(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, IndexError) as error:
        raise RemoteError("malformed", f"the response of {path} does not have vLLM's format") from error
    media = media_spans(rendered.features, len(rendered.token_ids)) if rendered.features else ()
    if media is None or not rendered.token_ids:
        raise RemoteError("malformed", f"the response of {path} contradicts itself")
    return TokenPrompt(array("I", rendered.token_ids), media)


def _text_request(api: RemoteApi, model: str, prompt: TextPrompt) -> RemoteRequest | None:
    fields: dict[str, object] = {"model": model} if model else {}
    fields |= {"prompt": prompt.text, "add_special_tokens": prompt.add_special_tokens}
    if prompt.truncation is not None:
        if api is RemoteApi.TOKENIZE:
            return None
        fields["truncate_prompt_tokens"] = prompt.truncation.n_tokens
        if not prompt.truncation.spares_added:
            fields["truncation_side"] = prompt.truncation.side
    path = "/tokenize" if api is RemoteApi.TOKENIZE else f"{COMPLETIONS_PATH}/render"
    return RemoteRequest(path, _encode(fields))


def _render_request(raw: RawRequest) -> RemoteRequest:
    # Only the identifiers of media are needed, not their data.
    return RemoteRequest(f"{raw.path}/render", _encode(_prompt_fields(raw) | {"mm_payload": "none"}))


def _tokenize_request(raw: RawRequest, prompt: ChatPrompt) -> RemoteRequest | None:
    if prompt.truncation is not None:
        return None
    fields = _prompt_fields(raw)
    # vLLM's /tokenize passes no other request field to a template.
    sent = _variables(fields.get("chat_template_kwargs", Raw(b"null")))
    variables: dict[str, object] = {**(sent or {}), **prompt.variables}
    if prompt.documents is not None:
        variables["documents"] = prompt.documents
    fields |= {"chat_template_kwargs": variables, "messages": _with_reasoning(fields["messages"])}
    return RemoteRequest("/tokenize", _encode(fields))


def _with_reasoning(messages: Raw) -> Raw | list[dict[str, Any]]:
    """Rename the older reasoning field of messages, since vLLM's /tokenize, unlike its chats, ignores it."""
    if OLD_REASONING.encode() not in bytes(messages):
        return messages
    renamed: list[dict[str, Any]] = []
    for message in _messages(messages):
        old = message.pop(OLD_REASONING, None)
        if old is not None and message.get("reasoning") is None:
            message["reasoning"] = old
        renamed.append(message)
    return renamed


def _prompt_fields(raw: RawRequest) -> dict[str, Any]:
    return {name: value for name, value in _fields(raw.body).items() if name not in NOT_IN_THE_PROMPT}
