"""Streamed responses on many connections of two threads: `make tsan` runs this under ThreadSanitizer."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest
import pytest_asyncio

from kvatlas.api.extproc import ext_proc_pb2 as pb
from kvatlas.api.extproc.health import HealthService
from kvatlas.api.extproc.intake import Intake
from kvatlas.api.extproc.server import ExtProcServer, message_limit
from kvatlas.api.extproc.stream import StreamOptions, StreamReports
from kvatlas.api.http2.context import Limits
from kvatlas.api.http2.native import has_http2
from kvatlas.routing.outcome import Completion, Outcome, Usage
from support.ext_proc import (
    DUPLEX,
    FixedRouter,
    header_map,
    make_route,
    request_body,
    request_headers,
    response_body,
    response_headers,
)
from support.ext_proc_client import Conversation, ExtProcClient, connected
from support.waiting import until

pytestmark = pytest.mark.skipif(not has_http2(), reason="needs libnghttp2")

N_CONNECTIONS, N_STREAMS, N_CHUNKS = 6, 20, 40

# The gateway waits for the end of the body before it reads a reply, of which there are as many as messages of the request.
REQUEST = [request_headers(config=DUPLEX), request_body(b'{"model":"m","prompt":"p"}', end=True)]
CHUNK = b'data: {"choices":[{"index":0,"delta":{"content":" token"}}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":40}}\n\ndata: [DONE]\n\n'
BODY = CHUNK * N_CHUNKS + USAGE


@dataclass
class Running:
    """A server with two threads, and what it reported."""

    port: int
    intake: Intake
    completions: list[Completion]

    def is_idle(self) -> bool:
        """Whether nothing is open or held."""
        self.intake.refresh_all()
        return (self.intake.n_streams, self.intake.n_requests, self.intake.n_bytes) == (0, 0, 0)


@pytest_asyncio.fixture
async def server() -> AsyncGenerator[Running]:
    running = Running(0, Intake(), [])
    server = ExtProcServer(
        FixedRouter(make_route("10.0.0.1:8000")),
        HealthService(ready=True),
        transport="http2",
        options=StreamOptions(intake=running.intake),
        limits=Limits(message_limit(4 << 20), n_threads=2),
        reports=StreamReports(on_complete=running.completions.append),
    )
    running.port = await server.start("127.0.0.1", 0)
    yield running
    await server.stop(0)


def response(cut: int) -> list[pb.ProcessingRequest]:
    """Return a response in chunks, the last two of which meet within the usage."""
    pieces = [CHUNK] * N_CHUNKS + [USAGE[:cut], USAGE[cut:]]
    headers = response_headers(("content-type", "text/event-stream"))
    return [headers, *(response_body(each) for each in pieces), response_body(end=True)]


def body_of(conversation: Conversation) -> bytes:
    """Return the body of the response as it came back."""
    bodies = [each.response_body for each in conversation.answers if each.HasField("response_body")]
    return b"".join(each.response.body_mutation.streamed_response.body for each in bodies)


async def streamed(client: ExtProcClient, cut: int) -> None:
    """Have one response pass: every byte comes back, in order."""
    conversation = client.converse(REQUEST, response(cut))
    assert await conversation.ended is None
    assert body_of(conversation) == BODY


async def cut_off(port: int) -> None:
    """Leave within responses."""
    async with connected(port) as client:
        conversations = [client.converse(REQUEST, response(1)) for _ in range(N_STREAMS)]
        await until(lambda: any(each.answers for each in conversations), what="the first reply")
        assert client.transport is not None
        client.transport.abort()
        await asyncio.gather(*(each.ended for each in conversations))


async def test_responses_pass_whole_on_all_threads_beside_clients_that_leave(server: Running) -> None:
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connected(server.port)) for _ in range(N_CONNECTIONS)]
        leaving = [asyncio.create_task(cut_off(server.port)) for _ in range(4)]
        await asyncio.gather(*(streamed(each, 1 + n) for each in clients for n in range(N_STREAMS)))
        await asyncio.gather(*leaving)
        await until(server.is_idle, what="accounts at zero")

    whole = [each.response.usage for each in server.completions if each.outcome is Outcome.COMPLETED]
    counted = Counter(each for each in whole if isinstance(each, Usage))
    assert counted[Usage(prompt_tokens=7, output_tokens=40)] >= N_CONNECTIONS * N_STREAMS
    assert len(counted) == 1


async def test_response_passes_after_its_announcement(server: Running) -> None:
    early = b'event: response.created\ndata: {"response": {"usage": null}}\n\n'
    path = pb.HttpHeaders(headers=header_map([(":path", "/v1/responses"), ("x-request-id", "id")]))
    request = [pb.ProcessingRequest(request_headers=path, protocol_config=DUPLEX), *REQUEST[1:]]
    headers, *rest = response(9)
    async with connected(server.port) as client:
        conversation = client.converse(request, [headers, response_body(early), *rest])
        assert await conversation.ended is None
    await until(server.is_idle, what="accounts at zero")

    assert body_of(conversation) == early + BODY
    (completion,) = server.completions
    assert completion.response.usage == Usage(prompt_tokens=7, output_tokens=40)
    assert completion.response.n_events == 1 + N_CHUNKS + 1
