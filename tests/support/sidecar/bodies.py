"""Bodies of a request's prefill and decode legs, by connector; no function changes the body that it is given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from support.sidecar.json_values import Json, as_list, as_object

GENERATE_PATH = "/inference/v1/generate"
RESPONSES_PATH = "/v1/responses"
PATHS = frozenset(("/v1/chat/completions", "/v1/completions", "/v1/messages", RESPONSES_PATH, GENERATE_PATH))
"""Paths with prefill and decode legs; requests of all others go to the engine as they are."""

_NIXL_PREFILL: Json = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
"""With nixlv2 the prefill engine says where the KV cache is; nothing is known before."""


def nixl_prefill(body: Mapping[str, Any], path: str, source: Json | None) -> Json:
    """Return the body for the prefill engine: one token, not streamed, whatever the client wants.

    Args:
        body: the client's.
        path: names the fields that limit the answer.
        source: `remote_kv_source` of a pull, None without one.
    """
    once = _unstreamed(body)
    match path:
        case "/v1/responses":
            once["max_output_tokens"] = 1
        case "/inference/v1/generate":
            once["sampling_params"] = as_object(body.get("sampling_params")) | {
                "max_tokens": 1,
                "min_tokens": 1,
            }
        case _:
            once |= {"max_tokens": 1, "max_completion_tokens": 1, "min_tokens": 1}
    pull: Json = {} if source is None else {"remote_kv_source": source}
    return once | {"kv_transfer_params": _NIXL_PREFILL | pull}


def with_transfer(body: Mapping[str, Any], params: object) -> Json:
    """Return the body with `kv_transfer_params`."""
    return {**body, "kv_transfer_params": params}


def short_prefill(body: Mapping[str, Any], params: Json) -> Json:
    """Return the body for a prefill engine that is called together with the decode engine."""
    once = _unstreamed(body) | {"max_tokens": 1, "kv_transfer_params": params}
    if "max_completion_tokens" in body:
        once["max_completion_tokens"] = 1
    return once


def shared_storage_prefill(body: Mapping[str, Any]) -> Json:
    """Return the body for an engine that leaves the KV cache in the storage; streamed if the client's is."""
    return {**body, "max_tokens": 1, "max_completion_tokens": 1, "cache_hit_threshold": 0}


def media_of(body: Mapping[str, Any]) -> list[Json]:
    """Return the parts of a chat that encoders take, in order; equal addresses once, inline ones each time."""
    found: list[Json] = []
    addresses: set[str] = set()
    for message in as_list(body.get("messages")):
        for part in map(as_object, as_list(as_object(message).get("content"))):
            kind = part.get("type")
            if kind not in ("image_url", "audio_url", "video_url", "input_audio"):
                continue
            value: Any = part.get(kind)
            address: object = value if isinstance(value, str) else as_object(value).get("url")
            if isinstance(address, str):
                if address in addresses:
                    continue
                addresses.add(address)
            found.append(part)
    return found


def encoder_body(body: Mapping[str, Any], part: Json) -> Json:
    """Return the body for an encoder: one message of one part, one token."""
    once: Json = {name: value for name, value in body.items() if name != "stream_options"}
    once |= {"messages": [{"role": "user", "content": [part]}], "max_tokens": 1, "stream": False}
    if "max_completion_tokens" in body:
        once["max_completion_tokens"] = 1
    return once


def _unstreamed(body: Mapping[str, Any]) -> Json:
    return {name: value for name, value in body.items() if name != "stream_options"} | {"stream": False}
