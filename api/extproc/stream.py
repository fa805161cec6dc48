"""Options and callbacks of all ext-proc streams of a server, and the actions of a stream after a message."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import uuid4

import msgspec

from ...routing.outcome import Completion, ResponseBegun, ResponseNamed
from ...routing.router import Router, RoutingRequest
from .dialect import Dialect, Proposal
from .intake import Intake
from .replies import Replies

DEFAULT_MAX_BODY_BYTES = 64 * 1024 * 1024
"""Limit of what one stream can hold. A prompt of 1 M tokens has about 4 MB of text; the rest is for images."""


def _new_request_id() -> str:
    return str(uuid4())


def _ignore(_: object) -> None:
    return


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """Settings of all streams of a server.

    Attributes:
        new_request_id: makes the id of a request without `x-request-id`.
        dialect: variant of the protocol.
        intake: budget of all streams together.
        max_body_bytes: longest request body; a longer one is refused with 413.
        read_usage: whether token counts are read out of responses.
        use_subset: whether gateways may restrict the endpoints of a request.
        emit_scores: whether the totals of the endpoints go to the gateway.
        max_sent_bytes: longest message to a gateway.
    """

    new_request_id: Callable[[], str] = _new_request_id
    dialect: Dialect = field(default_factory=Proposal)
    intake: Intake = field(default_factory=Intake)
    max_body_bytes: int = DEFAULT_MAX_BODY_BYTES
    read_usage: bool = True
    use_subset: bool = True
    emit_scores: bool = False
    max_sent_bytes: int = 2**31 - 1


@dataclass(frozen=True, slots=True)
class StreamReports:
    """Callbacks of all streams of a server.

    Attributes:
        on_error: called with the reason of each error: `router`, `not_protobuf` or `out_of_order`.
        on_begun: called at the first bytes of a response's body, at most once per request.
        on_complete: called once per request, as soon as its end is known and however it ended.
        on_named: called once the id of a response of the responses API was seen.
    """

    on_error: Callable[[str], None] = _ignore
    on_begun: Callable[[ResponseBegun], None] = _ignore
    on_complete: Callable[[Completion], None] = _ignore
    on_named: Callable[[ResponseNamed], None] = _ignore


@dataclass(frozen=True, slots=True)
class StreamContext:
    """Options and callbacks shared by all streams of a server.

    Attributes:
        options: settings.
        router: decides where requests go.
        reports: callbacks.
    """

    options: StreamOptions
    router: Router
    reports: StreamReports


class Step(msgspec.Struct, frozen=True, gc=False):
    """Actions after one message, in the order of begun, named, completion, route, replies, end.

    A msgspec struct, a tenth of a frozen dataclass's cost, since one is made per token of a streamed response.

    Attributes:
        replies: to send, in this order.
        route: a request to route; its result goes to `routed` before the next message is read.
        end: whether the stream is over.
        begun: a response that began with the message, to report.
        named: a response whose id came with the message, to report.
        completion: the end of the request, to report.
        passes: whether the rest of the response's body may pass; see `ExtProcMachine.passage`.
    """

    replies: Replies = ()
    route: RoutingRequest | None = None
    end: bool = False
    begun: ResponseBegun | None = None
    named: ResponseNamed | None = None
    completion: Completion | None = None
    passes: bool = False
