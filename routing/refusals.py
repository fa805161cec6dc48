"""Refusals of the picker: the texts that clients read."""

from __future__ import annotations

from .router import Refusal, RefusalCode

NO_CANDIDATES = Refusal(
    RefusalCode.SERVICE_UNAVAILABLE,
    "failed to find endpoint candidates for serving the request",
    dropped_reason="rejected-no-endpoints",
)
"""No endpoint is known, or the gateway's subset allows none."""

NONE_LEFT = Refusal(
    RefusalCode.RESOURCE_EXHAUSTED,
    "no endpoints available for the given request",
    dropped_reason="rejected-saturated",
)
"""Filters dropped every candidate. Source: text and reason are the reference's."""

SHED = Refusal(
    RefusalCode.RESOURCE_EXHAUSTED,
    "system saturated, sheddable request dropped",
    dropped_reason="rejected-saturated",
)
"""The fleet is saturated and the request has a negative priority. Source: text and reason are the reference's."""

NOT_CACHED = Refusal(RefusalCode.PRECONDITION_FAILED, "no decode worker has the requested KV cache")
"""Reply to `Prefer: if-available` if no prefix is cached. Source: the text is the reference's."""

NOT_REWRITTEN = Refusal(
    RefusalCode.SERVICE_UNAVAILABLE, "too much load to rewrite the model of a request; try again"
)
"""Past a limit the body is not read, so the model cannot be rewritten, and the original model would be wrong."""

MODEL_NOT_READ = Refusal(
    RefusalCode.SERVICE_UNAVAILABLE, "too much load to see which model a request is for; try again"
)
"""Past a limit the body is not read, so the endpoints that serve its model are unknown."""
