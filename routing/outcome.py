"""How a routed request ended, and what was seen of its response."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum
from http import HTTPStatus

import msgspec

from .router import Route


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request as the engine counted them; None where it does not say.

    Attributes:
        prompt_tokens: of the whole prompt, cached ones included.
        cached_tokens: of the prompt, found in the engine's cache.
        output_tokens: generated.
    """

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None


class UsageGap(StrEnum):
    """Why an answer's usage is not known; the value is a label of counters."""

    ABSENT = "absent"
    """The answer has none; streams have it only when the client asks for it."""
    OTHER_TYPE = "other_type"
    """Neither JSON nor an event stream."""
    ENCODED = "encoded"
    """The body is compressed."""
    TOO_LONG = "too_long"
    """A JSON answer or an event is longer than what is read."""
    OVERLOAD = "overload_bytes"
    """Bodies fill the memory they may take."""
    MALFORMED = "malformed"
    """What should be JSON is not."""


class Outcome(Enum):
    """How a request ended; `value` is the word in metrics.

    ROUTED: the request was routed and the gateway does not show its response to the picker.
    ABORTED: the client or the gateway went away first, or the stream broke the protocol.
    """

    COMPLETED = "completed"
    ROUTED = "routed"
    REFUSED = "refused"
    ABORTED = "aborted"


class Response(msgspec.Struct, frozen=True):
    """What was seen of an engine's answer.

    Attributes:
        status: HTTP status, None when the gateway did not show the headers.
        usage: tokens the engine counted, or why they are not known; None when nobody looked for them.
        n_events: events of a streamed answer, without the closing `[DONE]`.
        time_to_first_byte_s: from the decision to the first byte of the body, None when none was seen.
        time_to_end_s: from the decision to the end, None when there was no decision.
    """

    status: int | None = None
    usage: Usage | UsageGap | None = None
    n_events: int = 0
    time_to_first_byte_s: float | None = None
    time_to_end_s: float | None = None


NO_RESPONSE = Response()


class Completion(msgspec.Struct, frozen=True):
    """One finished request, told once: what was decided on it, if anything, and how it ended.

    Attributes:
        request_id: `x-request-id`, empty when the stream showed no request headers.
        route: where the request went, None when it was refused or never routed.
        outcome: how it ended.
        served: address of the endpoint whose response came, None when the gateway did not tell.
        response: what was seen of the response.
        is_hidden: whether the stream ended with the request's phase, so that the answer goes on for all that is known.
    """

    request_id: str
    route: Route | None
    outcome: Outcome
    served: str | None = None
    response: Response = NO_RESPONSE
    is_hidden: bool = False

    @property
    def endpoint(self) -> str | None:
        """Address of the endpoint the request counts for: who served it, else who was picked; None when nobody was."""
        if self.served is not None:
            return self.served
        return self.route.addresses[0] if self.route is not None else None

    @property
    def was_computed(self) -> bool:
        """Whether the picked endpoint can be taken to have computed the prompt; what is not shown is taken as good."""
        if self.route is None or self.endpoint != self.route.addresses[0]:
            return False
        if self.response.status is not None and self.response.status >= HTTPStatus.BAD_REQUEST:
            return False
        return self.outcome is not Outcome.ABORTED or self.response.time_to_first_byte_s is not None


@dataclass(frozen=True, slots=True)
class ResponseBegun:
    """The first bytes of an answer's body came.

    Attributes:
        route: where the request went.
        is_first_token: whether they are the model's first token: a streamed answer without error, shown as it comes.
        served: address of the endpoint whose answer it is, None when the gateway did not tell.
    """

    route: Route
    is_first_token: bool
    served: str | None
