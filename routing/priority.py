"""The priority of a request in its body, for engines that schedule by it."""

from __future__ import annotations

from dataclasses import replace

import msgspec
from msgspec import Raw

from ..configs.engines import TYPE_LABELS
from ..scorers.core.decision import Decision
from .router import ModelRewrite

_HIGHER_FIRST = frozenset({"sglang"})
"""Engines that prefer higher numbers, as objectives do; vLLM and others prefer lower ones."""

_decode_object = msgspec.json.Decoder(dict[str, Raw]).decode


def open_for_priority(body: bytes, rewrite: ModelRewrite | None) -> ModelRewrite | None:
    """Return the change of a request to which `prioritized` adds the priority; a client's own one is dropped.

    Args:
        body: of the request, with its new model if that changes.
        rewrite: what changes in the request otherwise.
    Returns:
        `rewrite` if the body is no JSON object.
    Cost: one pass over the body.
    """
    try:
        members = _decode_object(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return rewrite
    members.pop("priority", None)
    opened = msgspec.json.encode(members)
    if rewrite is None:
        return ModelRewrite(opened, has_priority=True)
    return replace(rewrite, body=opened, has_priority=True)


def prioritized(rewrite: ModelRewrite, decision: Decision, *, engine: str) -> ModelRewrite:
    """Return the change with the priority of the request's objective in its body, in the sense of the picked engine.

    Source: llm-d-router, which takes an engine without label for one that prefers higher numbers. vLLM without label
    would serve its requests in the opposite order, so the engine that the endpoint's metrics show counts here.

    Args:
        rewrite: as `open_for_priority` returned it.
        decision: on the request.
        engine: of the picked endpoint by its metrics, empty if they have not shown it; its label comes first.
    Cost: a copy of the body.
    """
    priority = decision.origin.priority if decision.origin is not None else 0
    labels = decision.best.labels
    named = next((labels[name] for name in TYPE_LABELS if labels.get(name)), engine)
    number = priority if named.lower() in _HIGHER_FIRST else -priority
    between = b"" if rewrite.body == b"{}" else b","
    return replace(
        rewrite, body=b'%b%b"priority":%d}' % (rewrite.body[:-1], between, number), has_priority=False
    )
