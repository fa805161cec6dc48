"""Refusals of the picker: the texts that clients read."""

from __future__ import annotations

from ..configs.section import MAX_NAME_CHARS
from ..scorers.core.decision import PROFILE, Decision
from ..scorers.core.drops import Denied
from .router import Overload, Refusal, RefusalCode

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

SCREENED = Refusal(
    RefusalCode.SERVICE_UNAVAILABLE,
    "screeners eliminated all endpoint candidates",
    dropped_reason="rejected-no-endpoints",
)
"""Screeners dropped every candidate. Source: text and reason are the reference's."""

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
"""Past a limit the body is not kept, so the model cannot be rewritten, and the original model would be wrong."""

MODEL_NOT_READ = Refusal(
    RefusalCode.SERVICE_UNAVAILABLE, "too much load to see which model a request is for; try again"
)
"""Past a limit only the beginning of a body is read; if it does not name the model, its endpoints are unknown."""

TOO_SLOW = Refusal(RefusalCode.REQUEST_TIMEOUT, "the request's body did not come in time")
"""As the two above, of a request past the limit of time."""

NAME_TOO_LONG = Refusal(
    RefusalCode.BAD_REQUEST,
    f"the header that replaces the model names one of more than {MAX_NAME_CHARS} characters",
)
"""There is no such model, and the model in the body would be wrong."""

NO_MODEL_LIST = Refusal(RefusalCode.SERVICE_UNAVAILABLE, "no model data collected yet from any endpoint")
"""Reply to `GET /v1/models` before any endpoint has shown its list. Source: the text is the reference's."""

TOO_MANY_HEADERS = Refusal(RefusalCode.HEADERS_TOO_LARGE, "the request has too many headers")
"""Headers that were not read could not be removed."""


NO_PROFILE = Refusal(
    RefusalCode.BAD_REQUEST, "there is no scheduling profile of the name in the request's header"
)
"""`header-profile-handler` has no profile of that name. The reference answers 429, after which clients try again."""


def unpicked(decision: Decision, *, is_screened: bool) -> Refusal:
    """Return the refusal of a request for which a decision picks no endpoint.

    Args:
        decision: on the request.
        is_screened: whether screeners dropped the last candidates.
    """
    if decision.denied is not None:
        return denied(decision.denied)
    lacking = decision.placement.lacking if decision.placement is not None else None
    if lacking == PROFILE:
        return NO_PROFILE
    if lacking is not None:
        return Refusal(
            RefusalCode.SERVICE_UNAVAILABLE,
            f"the request needs a server for its {lacking} stage, and there is none",
            dropped_reason="rejected-no-endpoints",
        )
    return SCREENED if is_screened else NONE_LEFT


def denied(admission: Denied) -> Refusal:
    """Return the refusal of a request that an admitter does not admit.

    The text is the reference's. Its status is 500, by which clients and gateways take a shed request for a failing picker.
    """
    return Refusal(
        RefusalCode.RESOURCE_EXHAUSTED,
        f"request cannot be admitted: {admission.reason}",
        dropped_reason="rejected-saturated",
    )


def unread(refusal: Refusal, overload: Overload) -> Refusal:
    """Return the refusal of a request past a limit."""
    return TOO_SLOW if overload is Overload.UPLOAD_TIME else refusal
