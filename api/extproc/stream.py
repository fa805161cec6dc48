"""What every ext-proc stream of a server shares, and what it does after each message."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from ...routing.outcome import Completion, ResponseBegun
from ...routing.router import RoutingRequest
from .dialect import Dialect
from .intake import Intake


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """What is the same for every stream of a server.

    Attributes:
        new_request_id: makes the id of a request that came without `x-request-id`.
        dialect: how the protocol is spoken.
        intake: what all streams together may hold.
        max_body_bytes: a longer request body is refused.
        read_usage: whether token counts are read out of responses.
    """

    new_request_id: Callable[[], str]
    dialect: Dialect
    intake: Intake
    max_body_bytes: int
    read_usage: bool


class Step(NamedTuple):
    """What to do after one message, in the order of begun, completion, route, replies, end.

    A named tuple, since one is made for every token of a streamed answer: a third of a frozen dataclass's cost.

    Attributes:
        replies: serialized ProcessingResponses to send.
        route: a request to route; its answer goes to `routed` before the next message is read.
        end: whether the stream is over.
        begun: an answer that began with the message, to be told.
        completion: the end of the request, to be told.
    """

    replies: tuple[bytes, ...] = ()
    route: RoutingRequest | None = None
    end: bool = False
    begun: ResponseBegun | None = None
    completion: Completion | None = None
