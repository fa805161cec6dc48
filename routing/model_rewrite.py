"""Another model in a request's body."""

from __future__ import annotations

from typing import Protocol

import msgspec
from msgspec import Raw

from .router import ModelRewrite


class _Named(msgspec.Struct):
    """The one member that counts."""

    model: str = ""


_decode_model = msgspec.json.Decoder(_Named).decode
_decode_object = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_string = msgspec.json.Decoder(str).decode


class ModelRules(Protocol):
    """Which models take the place of others."""

    @property
    def has_rules(self) -> bool:
        """Whether any does."""
        ...

    def target(self, model: str) -> str:
        """The model that takes the place of `model`; empty when it stays."""
        ...


def target_by_rules(body: bytes, rules: ModelRules) -> str:
    """The model that takes the place of the body's; empty when it stays, or the body is no JSON object.

    Cost: one pass over the body.
    """
    try:
        asked_for = _decode_model(body).model
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""
    target = rules.target(asked_for)
    return "" if target == asked_for else target


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
