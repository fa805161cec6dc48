"""An ext-proc stream over http2 whose routing has to be waited for."""

from __future__ import annotations

import asyncio
import gc
import time
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from grpc import StatusCode

from kvatlas.api.extproc import ext_proc_pb2 as pb
from kvatlas.api.extproc.call import MAX_WAITING, MAX_WAITING_BYTES, TURN_BYTES, ExtProcCall
from kvatlas.api.extproc.intake import Intake
from kvatlas.api.extproc.stream import StreamContext, StreamOptions, StreamReports
from kvatlas.routing.outcome import Completion, Outcome
from kvatlas.routing.router import Route, Router, RoutingRequest, RoutingResult
from kvatlas.tokenization.eventual import Eventual, Later
from support.ext_proc import DUPLEX, make_route, request_body, request_headers, streamed

ROUTE = make_route("10.0.0.1:8000")
MAX_BODY_BYTES = 64 * 2**20
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

    def send(self, message: bytes) -> None:
        self.sent.append(message)

    def finish(self, status: StatusCode, text: str = "") -> None:  # noqa: ARG002
        self.ended.append(status)

    async def drained(self) -> None:
        raise AssertionError("nobody waits for that here")

    def pause_reading(self) -> None:
        assert not self.is_paused
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False


def call_on(gateway: Gateway, router: Router, intake: Intake | None = None) -> ExtProcCall:
    options = StreamOptions(intake=intake or Intake(), max_body_bytes=MAX_BODY_BYTES)
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


@pytest.mark.parametrize("leaves", [False, True], ids=["stays", "leaves"])
async def test_long_body_is_sent_back_in_turns_before_anything_else(leaves: bool) -> None:
    gateway, router, intake = Gateway(), WaitingRouter(), Intake()
    router.may_answer.set()
    call = call_on(gateway, router, intake)
    body = bytes(range(256)) * (8 * TURN_BYTES // 256)
    send(call, REQUEST[0], request_body(body, end=True))
    in_each_turn = [0]
    while (n_sent := sum(map(len, gateway.sent))) < len(body):
        if len(in_each_turn) == 3:
            send(call, pb.ProcessingRequest(response_headers=pb.HttpHeaders()))
        in_each_turn.append(n_sent)
        if leaves and len(in_each_turn) > 3:
            break
        await turns(1)
    call.gone() if leaves else call.ended()
    await turns()

    steps = [after - before for before, after in pairwise(in_each_turn)]
    assert max(steps) < 2 * TURN_BYTES
    if leaves:
        assert gateway.ended == [StatusCode.CANCELLED]
        assert sum(map(len, gateway.sent)) < len(body)
    else:
        replies = [pb.ProcessingResponse.FromString(each) for each in gateway.sent]
        assert b"".join(chunk for chunk, _ in streamed(replies, "request_body")) == body
        assert replies[-1].WhichOneof("response") == "response_headers"
    assert (intake.n_streams, intake.n_requests, intake.n_bytes) == (0, 0, 0)
    assert len(gateway.completions) == 1
