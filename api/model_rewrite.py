"""Another model in a request's body."""

from __future__ import annotations

import msgspec
from msgspec import Raw

from .routing import ModelRewrite

_decode_object = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_string = msgspec.json.Decoder(str).decode


def rewritten(body: bytes, target: str) -> ModelRewrite | None:
    """`body` with `target` as its model, added when it has none; None when it is no JSON object.

    Every other member keeps its bytes and its place; only white space between members goes, and of repeated members
    all but the last.
    Cost: one pass over the body.
    """
    try:
        members = _decode_object(body)
        asked_for = _decode_string(members["model"]) if "model" in members else ""
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    members["model"] = Raw(msgspec.json.encode(target))
    return ModelRewrite(msgspec.json.encode(members), asked_for, target)
