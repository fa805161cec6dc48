"""Replacing the model in a request's body."""

from __future__ import annotations

from typing import Protocol

import msgspec
from msgspec import Raw

from ..configs.section import MAX_NAME_CHARS
from ..tokenization.requests.beginning import model_of_beginning
from .control_headers import model_rewrite
from .refusals import NAME_TOO_LONG, NOT_REWRITTEN, unread
from .router import ModelRewrite, Refusal, RoutingRequest


class _Named(msgspec.Struct):
    """The one member that is read."""

    model: str = ""


_decode_model = msgspec.json.Decoder(_Named).decode
_decode_object = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_string = msgspec.json.Decoder(str).decode


class ModelRules(Protocol):
    """Rules by which models replace others."""

    @property
    def has_rules(self) -> bool:
        """Whether there is any rule."""
        ...

    def target(self, model: str) -> str:
        """Return the model that replaces `model`; empty if none does."""
        ...


def rewrite_of(request: RoutingRequest, rules: ModelRules | None) -> ModelRewrite | Refusal | None:
    """Return what changes in a request, by its headers or else by the rules; None if nothing does.

    A request past a limit, of whose body only the beginning is known, is refused if it would have to change.
    """
    target = model_rewrite(request.headers)
    applying = rules if rules is not None and request.has_body and rules.has_rules else None
    if not target and applying is None:
        return None
    if len(target) > MAX_NAME_CHARS:
        return NAME_TOO_LONG
    if request.overload is not None:
        model = "" if target else model_of_beginning(request.body)
        is_kept = model and applying is not None and applying.target(model) in ("", model)
        return None if is_kept else unread(NOT_REWRITTEN, request.overload)
    if not target and applying is not None:
        target = target_by_rules(request.body, applying)
    return rewritten(request.body, target) if target and request.body else None


def target_by_rules(body: bytes, rules: ModelRules) -> str:
    """Return the model that replaces the body's; empty if none does, or the body is no JSON object.

    Cost: one pass over the body.
    """
    try:
        asked_for = _decode_model(body).model
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""
    target = rules.target(asked_for)
    return "" if target == asked_for else target


def rewritten(body: bytes, target: str) -> ModelRewrite | None:
    """Return `body` with `target` as its model, added if it has none; None if `body` names it already or is no JSON object.

    Every other member keeps its bytes and its place. White space between members is dropped, and so are repeated
    members but the last.
    Cost: one pass over the body.
    """
    try:
        members = _decode_object(body)
        asked_for = _decode_string(members["model"]) if "model" in members else ""
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if asked_for == target:
        return None
    members["model"] = Raw(msgspec.json.encode(target))
    # A long name would be written into every event of the response.
    asked_for = asked_for if len(asked_for) <= MAX_NAME_CHARS else ""
    return ModelRewrite(msgspec.json.encode(members), asked_for, target)
