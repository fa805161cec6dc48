"""The end of a routed request, and what was seen of its response."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from typing import NamedTuple

import msgspec

from ..scorers.core.decision import Decision
from .router import Route


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request as the engine counted them; None if it does not report a count.

    Attributes:
        prompt_tokens: of the whole prompt, cached ones included.
        cached_tokens: of the prompt, found in the engine's cache.
        output_tokens: generated.
    """

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None


class UsageGap(StrEnum):
    """Why a response's usage is not known; the value is a label of counters."""

    ABSENT = "absent"
    """The response has none; streams have it only if the client requests it."""
    OTHER_TYPE = "other_type"
    """Neither JSON nor an event stream."""
    ENCODED = "encoded"
    """The body is compressed."""
    TOO_LONG = "too_long"
    """A JSON response or an event is longer than the limit."""
    OVERLOAD = "overload_bytes"
    """Bodies fill their memory budget."""
    MALFORMED = "malformed"
    """The body should be JSON and is not."""


class Outcome(StrEnum):
    """The end of a request; `value` is the word in metrics.

    ANSWERED: the picker itself responded.
    ROUTED: the request was routed, and the gateway does not send its response to the picker.
    ABORTED: the client or the gateway went away first, or the stream broke the protocol.
    """

    COMPLETED = "completed"
    ROUTED = "routed"
    ANSWERED = "answered"
    REFUSED = "refused"
    ABORTED = "aborted"


class Response(msgspec.Struct, frozen=True):
    """An engine's response, as far as it was seen.

    Attributes:
        status: HTTP status, None if the gateway did not send the headers.
        usage: tokens the engine counted, or why they are not known; None if usage is not read.
        n_events: events of a streamed response, without the closing `[DONE]`.
        shows_tokens: whether it was a successful streamed response, sent as it came.
        time_to_first_byte_s: from the decision to the first byte of the body, None if none was seen.
        time_to_end_s: from the decision to the end, None if there was no decision.
    """

    status: int | None = None
    usage: Usage | UsageGap | None = None
    n_events: int = 0
    time_to_first_byte_s: float | None = None
    time_to_end_s: float | None = None
    shows_tokens: bool = False

    def tpot_s(self, decision: Decision) -> float | None:
        """Return the seconds per output token after the first; None if it was not streamed, has no second token, or has several prompts.

        Tokens are counted by the engine, or as events if it reports no count: those of all choices, which are generated side by
        side. Those of one choice count, in the mean.
        """
        first, end = self.time_to_first_byte_s, self.time_to_end_s
        if not self.shows_tokens or first is None or end is None or decision.n_prompts != 1:
            return None
        counted = self.usage.output_tokens if isinstance(self.usage, Usage) else None
        n_later = (self.n_events if counted is None else counted) / decision.n_choices - 1.0
        return (end - first) / n_later if n_later >= 1.0 else None

    def output_tokens(self, decision: Decision) -> int | None:
        """Return the mean tokens of a choice as the engine counted them; None if it reports none, or if there are several prompts."""
        counted = self.usage.output_tokens if isinstance(self.usage, Usage) else None
        return (
            round(counted / decision.n_choices) if counted is not None and decision.n_prompts == 1 else None
        )


NO_RESPONSE = Response()


class Completion(msgspec.Struct, frozen=True):
    """One finished request, reported once: its decision, if any, and its end.

    Attributes:
        request_id: `x-request-id`, empty if the stream had no request headers.
        route: where the request went, None if it was refused or never routed.
        outcome: how it ended.
        served: address of the endpoint whose response came, None if the gateway did not report it.
        response: what was seen of the response.
        is_hidden: whether the stream ended with the request phase, so that the response may still be in progress.
    """

    request_id: str
    route: Route | None
    outcome: Outcome
    served: str | None = None
    response: Response = NO_RESPONSE
    is_hidden: bool = False

    @property
    def endpoint(self) -> str | None:
        """Address of the endpoint that the request counts for: the one that served, else the picked one; None without both."""
        if self.served is not None:
            return self.served
        return self.route.addresses[0] if self.route is not None else None

    @property
    def tpot_s(self) -> float | None:
        """Seconds per output token of a response by the picked endpoint, seen to its end; None of any other."""
        if self.route is None or self.endpoint != self.route.addresses[0]:
            return None
        return self.response.tpot_s(self.route.decision) if self.outcome is Outcome.COMPLETED else None

    @property
    def output_tokens(self) -> int | None:
        """Tokens of one choice that the picked endpoint counted in a complete response; None of any other, see `Response.output_tokens`."""
        if (
            self.route is None
            or self.outcome is not Outcome.COMPLETED
            or self.endpoint != self.route.addresses[0]
        ):
            return None
        return self.response.output_tokens(self.route.decision)

    @property
    def was_computed(self) -> bool:
        """Whether the picked endpoint probably computed the prompt. A response that was not seen counts as successful."""
        if self.route is None or self.endpoint != self.route.addresses[0]:
            return False
        if self.response.status is not None and self.response.status >= HTTPStatus.BAD_REQUEST:
            return False
        return self.outcome is not Outcome.ABORTED or self.response.time_to_first_byte_s is not None


class ResponseNamed(NamedTuple):
    """The id of a response of the responses API was seen; its server may have stored it.

    Attributes:
        response_id: the id.
        address: of the server.
    """

    response_id: str
    address: str


@dataclass(frozen=True, slots=True)
class ResponseBegun:
    """The first bytes of a response's body came.

    Attributes:
        route: where the request went.
        is_first_token: whether they are the model's first token: a successful streamed response, sent as it comes.
        served: address of the endpoint that responded, None if the gateway did not report it.
    """

    route: Route
    is_first_token: bool
    served: str | None
