"""An ext-proc stream over http2 whose routing has to be waited for."""

from __future__ import annotations

import asyncio
import gc
import time
from dataclasses import dataclass, field

import pytest
from grpc import StatusCode

from kvatlas.api.extproc import ext_proc_pb2 as pb
from kvatlas.api.extproc.call import MAX_WAITING, MAX_WAITING_BYTES, SENT_AT_ONCE_BYTES, ExtProcCall
from kvatlas.api.extproc.intake import Intake
from kvatlas.api.extproc.stream import StreamContext, StreamOptions, StreamReports
from kvatlas.api.http2.call import MakePassage
from kvatlas.routing.outcome import Completion, Outcome
from kvatlas.routing.router import Route, Router, RoutingRequest, RoutingResult
from kvatlas.tokenization.eventual import Eventual, Later
from support.ext_proc import DUPLEX, FixedRouter, make_route, request_body, request_headers, streamed

ROUTE = make_route("10.0.0.1:8000")
REQUEST = (request_headers(config=DUPLEX), request_body(b"{}", end=True))


class WaitingRouter(Router):
    """Routes once it may."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.n_asked = 0

    def route(self, request: RoutingRequest) -> Eventual[RoutingResult]:  # noqa: ARG002
        return Later(self._route())

    async def _route(self) -> RoutingResult:
        self.n_asked += 1
        await self.may_answer.wait()
        return ROUTE


@dataclass
class Gateway:
    """A responder, and all that is told of the stream."""

    sent: list[bytes] = field(default_factory=list[bytes])
    ended: list[StatusCode] = field(default_factory=list[StatusCode])
    completions: list[Completion] = field(default_factory=list[Completion])
    is_paused: bool = False
    may_send: asyncio.Event = field(default_factory=asyncio.Event)

    def send(self, message: bytes) -> None:
        self.sent.append(message)

    def finish(self, status: StatusCode, text: str = "") -> None:  # noqa: ARG002
        self.ended.append(status)

    def pass_messages(self, make: MakePassage) -> None:
        """Have every message come to the call."""

    async def drained(self) -> None:
        await self.may_send.wait()

    def pause_reading(self) -> None:
        assert not self.is_paused
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False


def call_on(
    gateway: Gateway, router: Router, intake: Intake | None = None, *, max_body_bytes: int = 1000
) -> ExtProcCall:
    options = StreamOptions(intake=intake or Intake(), max_body_bytes=max_body_bytes)
    reports = StreamReports(on_complete=gateway.completions.append)
    return ExtProcCall(StreamContext(options, router, reports), gateway)


def send(call: ExtProcCall, *messages: pb.ProcessingRequest) -> None:
    for message in messages:
        call.received(message.SerializeToString())


async def turns(n: int = 5) -> None:
    """Let everything happen that can."""
    for _ in range(n):
        await asyncio.sleep(0)


async def test_messages_wait_their_turn_while_the_request_is_routed() -> None:
    gateway, router = Gateway(), WaitingRouter()
    call = call_on(gateway, router)
    send(call, *REQUEST, pb.ProcessingRequest(response_headers=pb.HttpHeaders()))
    call.ended()
    await turns()
    assert (router.n_asked, gateway.sent, gateway.ended) == (1, [], [])

    router.may_answer.set()
    await turns()

    assert [pb.ProcessingResponse.FromString(each).WhichOneof("response") for each in gateway.sent] == [
        "request_headers",
        "request_body",
        "response_headers",
    ]
    assert gateway.ended == [StatusCode.OK]
    assert [each.route for each in gateway.completions] == [ROUTE]


@pytest.mark.parametrize(
    ("is_ready", "route"),
    [
        pytest.param(True, ROUTE, id="the_route_is_told_that_nobody_took"),
        pytest.param(False, None, id="the_wait_is_given_up"),
    ],
)
async def test_request_ends_once_when_its_client_leaves_in_the_same_breath(
    is_ready: bool, route: Route | None
) -> None:
    gateway, router, intake = Gateway(), WaitingRouter(), Intake()
    if is_ready:
        router.may_answer.set()
    call = call_on(gateway, router, intake)
    send(call, *REQUEST)
    call.gone()
    call.gone()
    await turns()
    gc.collect()  # a coroutine that was never awaited would say so

    assert gateway.sent == []
    assert [(each.outcome, each.route) for each in gateway.completions] == [(Outcome.ABORTED, route)]
    assert (intake.n_streams, intake.n_requests, intake.n_bytes) == (0, 0, 0)
    send(call, *REQUEST)
    call.ended()
    assert len(gateway.completions) == 1


@pytest.mark.parametrize(
    "more",
    [
        pytest.param([request_body(b"x")] * (MAX_WAITING + 1), id="messages"),
        pytest.param([request_body(b"x" * (MAX_WAITING_BYTES // 2))] * 2, id="bytes"),
    ],
)
async def test_gateway_that_goes_on_and_on_is_stopped(more: list[pb.ProcessingRequest]) -> None:
    gateway, router = Gateway(), WaitingRouter()
    call = call_on(gateway, router)

    send(call, *REQUEST, *more)
    await turns()

    assert gateway.ended == [StatusCode.RESOURCE_EXHAUSTED]
    assert [each.outcome for each in gateway.completions] == [Outcome.ABORTED]


LONG = b"x" * (5 * SENT_AT_ONCE_BYTES)


async def test_long_body_is_returned_piece_by_piece_as_the_gateway_takes_it() -> None:
    gateway, intake = Gateway(), Intake()
    call = call_on(gateway, FixedRouter(ROUTE), intake, max_body_bytes=len(LONG))
    send(
        call,
        REQUEST[0],
        request_body(LONG, end=True),
        pb.ProcessingRequest(response_headers=pb.HttpHeaders()),
    )
    await turns()

    assert 0 < sum(map(len, gateway.sent)) <= SENT_AT_ONCE_BYTES + 1000
    assert (gateway.is_paused, intake.n_bytes) == (True, len(LONG))

    gateway.may_send.set()
    await turns(50)

    replies = [pb.ProcessingResponse.FromString(each) for each in gateway.sent]
    chunks = streamed(replies, "request_body")
    assert b"".join(chunk for chunk, _ in chunks) == LONG
    assert [end for _, end in chunks] == [False] * (len(chunks) - 1) + [True]
    assert [reply.WhichOneof("response") for reply in replies[:: len(replies) - 1]] == [
        "request_headers",
        "response_headers",
    ]
    assert (gateway.is_paused, intake.n_bytes) == (False, 0)


async def test_long_body_goes_no_further_when_its_client_leaves() -> None:
    gateway, intake = Gateway(), Intake()
    call = call_on(gateway, FixedRouter(ROUTE), intake, max_body_bytes=len(LONG))
    send(call, REQUEST[0], request_body(LONG, end=True))
    await turns()
    n_sent = len(gateway.sent)

    gateway.may_send.set()
    call.gone()
    await turns(50)

    assert len(gateway.sent) == n_sent
    assert [each.outcome for each in gateway.completions] == [Outcome.ABORTED]
    assert (intake.n_streams, intake.n_requests, intake.n_bytes) == (0, 0, 0)


async def test_upload_past_the_time_limit_is_routed_at_once() -> None:
    gateway, router, intake = Gateway(), WaitingRouter(), Intake(max_seconds=0)
    router.may_answer.set()
    call = call_on(gateway, router, intake)
    send(call, request_headers(config=DUPLEX), request_body(b"ab"))
    assert gateway.sent == []

    intake.expire(time.monotonic())
    await turns()
    send(call, request_body(b"cd", end=True))

    replies = [pb.ProcessingResponse.FromString(reply) for reply in gateway.sent]
    assert streamed(replies, "request_body") == [(b"ab", False), (b"cd", True)]
    call.gone()
    intake.expire(time.monotonic())
    assert (intake.n_streams, intake.n_requests, intake.n_bytes) == (0, 0, 0)
