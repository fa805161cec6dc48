"""The link between workers, over its real sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest
import zmq

from kvatlas.app.workers.link import MAX_QUEUED, WorkerLink, WorkerSockets
from kvatlas.scorers.core.model import IDLE, InFlightLoad
from support.waiting import until

LONG = 5 * 2**20


def has_load(link: WorkerLink, load: InFlightLoad) -> bool:
    return link.of("a") == load


@pytest.fixture
def sockets() -> Iterator[WorkerSockets]:
    made = WorkerSockets(3)
    yield made
    made.close()


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


async def echo(body: bytes) -> bytes:
    return body


async def replies(link: WorkerLink, body: bytes, expected: dict[int, bytes]) -> bool:
    return await link.requests.request("echo", body) == expected


async def test_long_request_and_reply_pass_whole(sockets: WorkerSockets, stack: AsyncExitStack) -> None:
    links = [await stack.enter_async_context(sockets.link(number)) for number in range(3)]
    for link in links:
        link.requests.handle("echo", echo)
    body = bytes(LONG)

    await until(lambda: replies(links[0], body, {1: body, 2: body}))


async def test_worker_is_found_again_after_it_was_away(sockets: WorkerSockets, stack: AsyncExitStack) -> None:
    first = await stack.enter_async_context(sockets.link(0))
    for life in range(2):
        assert await first.requests.request("echo", b"?", to=[1], timeout_s=0.05) == {}
        async with sockets.link(1) as second:
            second.requests.handle("echo", echo)
            await until(partial(replies, first, bytes([life]), {1: bytes([life])}))


async def test_load_arrives_changes_and_ends_with_its_worker(
    sockets: WorkerSockets, stack: AsyncExitStack
) -> None:
    first = await stack.enter_async_context(sockets.link(0))
    async with sockets.link(1) as second:
        for load in (InFlightLoad(1, 10), InFlightLoad(2, 20), IDLE):
            second.publish("a", load)
            await until(partial(has_load, first, load))


async def test_worker_that_does_not_receive_delays_no_other(
    sockets: WorkerSockets, stack: AsyncExitStack
) -> None:
    first = await stack.enter_async_context(sockets.link(0))
    third = await stack.enter_async_context(sockets.link(2))
    third.requests.handle("echo", echo)
    with zmq.Context() as context, context.socket(zmq.PULL) as hanging:
        hanging.bind(sockets.address(1))
        for number in range(3 * MAX_QUEUED):
            first.publish("a", InFlightLoad(number + 1, 0))
            first.flush()
        await until(lambda: replies(first, b"?", {2: b"?"}))


async def test_foreign_messages_are_ignored(sockets: WorkerSockets, stack: AsyncExitStack) -> None:
    first = await stack.enter_async_context(sockets.link(0))
    second = await stack.enter_async_context(sockets.link(1))
    second.requests.handle("echo", echo)
    with zmq.Context() as context, context.socket(zmq.PUSH) as stranger:
        stranger.connect(sockets.address(0))
        for frames in ([b""], [b"l"], [b"l", b"x"], [b"r", b""], [b"x", b"y"], [b"l", b"", b""]):
            stranger.send_multipart(frames)

    await until(lambda: replies(first, b"?", {1: b"?"}))


def test_folder_is_private_and_gone_at_the_end() -> None:
    sockets = WorkerSockets(2)
    folder = Path(sockets.address(1).removeprefix("ipc://")).parent
    assert folder.stat().st_mode & 0o777 == 0o700
    sockets.close()
    assert not folder.exists()
