"""Illegal orders, broken and giant messages and clients that leave, over real gRPC: each costs its own stream alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import grpc
import grpc.aio
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.api.extproc import ext_proc_pb2 as pb
from kvatlas.api.extproc.health import EXT_PROC_SERVICE, HealthService
from kvatlas.api.extproc.intake import Intake, OnRevoked, Share
from kvatlas.api.extproc.server import ExtProcServer, message_limit
from kvatlas.api.extproc.stream import StreamOptions, StreamReports
from kvatlas.api.http2.context import Limits
from kvatlas.routing.outcome import Completion
from support.blocking_stream import converse
from support.ext_proc import (
    BUFFERED,
    DUPLEX,
    FixedRouter,
    kind_of,
    make_route,
    request_body,
    request_headers,
    request_trailers,
    response_body,
    response_headers,
    response_trailers,
)
from support.waiting import until

GOOD = (request_headers(config=DUPLEX), request_body(b"{}", end=True))
GIANT = ("x-giant", "x" * 900_000)
TOO_LARGE = ("x-too-large", "x" * 1_200_000)

KINDS = [
    request_headers(config=DUPLEX),
    request_headers(config=BUFFERED),
    request_headers(end=True),
    request_headers(GIANT),
    request_headers(TOO_LARGE),
    request_body(b"{}", end=True),
    request_body(b"x" * 70_000),
    request_trailers(),
    response_headers(("content-type", "text/event-stream")),
    response_headers(GIANT, end=True),
    response_body(b'data: {"usage":{"prompt_tokens":1}}\n\n'),
    response_body(end=True),
    response_trailers(),
    pb.ProcessingRequest(),
]
MESSAGES = st.sampled_from([message.SerializeToString() for message in KINDS])
BROKEN = st.binary(max_size=20) | st.tuples(MESSAGES, st.integers(0, 60)).map(lambda cut: cut[0][: cut[1]])
STREAMS = st.lists(st.one_of(MESSAGES, BROKEN), max_size=6)
ENDINGS = {grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED}


class CountingIntake(Intake):
    """An intake that knows how many streams there were: each has one share of it."""

    n_streams = 0

    def share(self, on_revoked: OnRevoked = lambda _: None) -> Share:
        self.n_streams += 1
        return super().share(on_revoked)


@dataclass
class Target:
    """A running server and a client of it."""

    intake: CountingIntake
    process: grpc.aio.StreamStreamMultiCallable[bytes, pb.ProcessingResponse]
    channel: grpc.Channel
    completions: list[Completion]

    async def converse(self, messages: list[bytes]) -> grpc.StatusCode:
        """Says everything, listens to everything, and returns how the stream ended."""
        return (await converse(self.channel, messages)).code

    async def leave(self, messages: list[bytes]) -> None:
        """Says everything and goes away, unless the server ends the stream first."""
        call = self.process()
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            for message in messages:
                await call.write(message)
        call.cancel()

    async def serves(self) -> bool:
        """Whether a good request is answered as ever."""
        call = self.process(iter([message.SerializeToString() for message in GOOD]))
        return [kind_of(answer) async for answer in call] == ["request_headers", "request_body"]

    async def holds_nothing(self) -> None:
        """Return once every stream was reported, and nothing is held."""
        await until(lambda: len(self.completions) == self.intake.n_streams, what="one completion a stream")
        await until(self._is_empty, what="nothing that is held")

    def _is_empty(self) -> bool:
        self.intake.refresh_all()
        return (self.intake.n_requests, self.intake.n_bytes) == (0, 0)


@asynccontextmanager
async def running() -> AsyncGenerator[Target]:
    intake = CountingIntake(max_bytes=150_000)
    completions: list[Completion] = []
    server = ExtProcServer(
        FixedRouter(make_route("10.0.0.1:8000")),
        HealthService(ready=True),
        options=StreamOptions(intake=intake, max_body_bytes=100_000),
        limits=Limits(message_limit(100_000), n_threads=2),
        reports=StreamReports(on_complete=completions.append),
    )
    port = await server.start("127.0.0.1", 0)
    where, options = f"127.0.0.1:{port}", [("grpc.max_send_message_length", -1)]
    async with grpc.aio.insecure_channel(where, options=options) as channel:
        process: grpc.aio.StreamStreamMultiCallable[bytes, pb.ProcessingResponse] = channel.stream_stream(
            f"/{EXT_PROC_SERVICE}/Process", response_deserializer=pb.ProcessingResponse.FromString
        )
        try:
            with grpc.insecure_channel(where, options=options) as blocking:
                yield Target(intake, process, blocking, completions)
        finally:
            await server.stop(0)


def each_on_one_server(attack: Callable[[Target, list[list[bytes]]], Coroutine[None, None, None]]) -> None:
    """Many attacks on the same server, which must be as good as new after each."""
    with asyncio.Runner() as runner:
        context = running()
        target = runner.run(context.__aenter__())

        @given(st.lists(STREAMS, min_size=1, max_size=8))
        def run(streams: list[list[bytes]]) -> None:
            runner.run(attack(target, streams))

        try:
            run()
        finally:
            runner.run(context.__aexit__(None, None, None))


def test_any_messages_end_their_own_stream_at_worst() -> None:
    async def attack(target: Target, streams: list[list[bytes]]) -> None:
        codes = await asyncio.gather(*(target.converse(messages) for messages in streams))
        assert set(codes) <= ENDINGS
        assert await target.serves()
        await target.holds_nothing()

    each_on_one_server(attack)


def test_clients_that_leave_at_any_point_leave_nothing_behind() -> None:
    async def attack(target: Target, streams: list[list[bytes]]) -> None:
        await asyncio.gather(*(target.leave(messages) for messages in streams))
        assert await target.serves()
        await target.holds_nothing()

    each_on_one_server(attack)
