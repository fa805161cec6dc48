"""Requests between workers: replies in any order, and workers that do not reply."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.app.workers.request_reply import RequestReply
from kvatlas.fleet.errors import ConfigRefusedError

ALL = range(3)
SOON_S = 0.05


class Network:
    """Workers, and the messages between them, which may be lost or reordered."""

    def __init__(self, *, lost: Callable[[int], bool] = lambda _: False, seed: int = 0) -> None:
        self.lost, self.rng = lost, random.Random(seed)
        self.on_the_way: list[tuple[int, bytes]] = []
        self.workers = [
            RequestReply(number, [each for each in ALL if each != number], self.send) for number in ALL
        ]

    async def send(self, to: int, message: bytes) -> None:
        if self.lost(to):
            return
        self.on_the_way.append((to, message))
        await asyncio.sleep(0)
        if self.on_the_way:
            where = self.rng.randrange(len(self.on_the_way))
            receiver, arrived = self.on_the_way.pop(where)
            self.workers[receiver].receive(arrived)

    def echo_from(self, *workers: int) -> None:
        """Let these workers reply with their number and the request."""
        for worker in workers:
            self.workers[worker].handle("echo", repeating(worker))


def repeating(worker: int) -> Callable[[bytes], asyncio.Future[bytes]]:
    async def repeat(body: bytes) -> bytes:
        await asyncio.sleep(0)
        return bytes([worker]) + body

    return lambda body: asyncio.ensure_future(repeat(body))


@given(
    sizes=st.lists(st.sampled_from([0, 1, 1000]), max_size=4),
    seed=st.integers(0, 99),
)
def test_every_request_gets_its_own_replies_when_messages_overtake_each_other(
    sizes: list[int], seed: int
) -> None:
    async def run() -> None:
        network = Network(seed=seed)
        network.echo_from(*ALL)
        bodies = [bytes([number]) * size for number, size in enumerate(sizes)]
        answers = await asyncio.gather(*(network.workers[0].request("echo", body) for body in bodies))
        assert answers == [{1: b"\1" + body, 2: b"\2" + body} for body in bodies]

    asyncio.run(run())


async def fails(_: bytes) -> bytes:
    raise ConfigRefusedError("no")


@pytest.mark.parametrize("why", ["lost", "not_known", "fails"])
async def test_worker_without_a_reply_is_silent(why: str, caplog: pytest.LogCaptureFixture) -> None:
    network = Network(lost=lambda to: why == "lost" and to == 1)
    network.echo_from(2, *([1] if why == "lost" else []))
    if why == "fails":
        network.workers[1].handle("echo", fails)

    answers = await network.workers[0].request("echo", b"?", timeout_s=SOON_S)

    assert (answers, network.workers[0].silent(answers)) == ({2: b"\2?"}, (1,))
    assert ("requested echo: no" in caplog.text) == (why == "fails")


async def test_only_the_named_workers_get_the_request() -> None:
    network = Network()
    network.echo_from(*ALL)

    assert await network.workers[0].request("echo", b"?", to=[2]) == {2: b"\2?"}
    assert await network.workers[0].request("echo", b"?", to=[]) == {}


async def test_late_reply_changes_nothing() -> None:
    late = asyncio.Event()

    async def waits(_: bytes) -> bytes:
        await late.wait()
        return b"late"

    network = Network()
    network.workers[1].handle("echo", waits)
    assert await network.workers[0].request("echo", to=[1], timeout_s=SOON_S) == {}
    network.echo_from(1)
    late.set()

    assert await network.workers[0].request("echo", b"?", to=[1]) == {1: b"\1?"}


@pytest.mark.parametrize(
    "message", [b"", b"\x93\1\2\3", b"\x95\1\2\xa1a\5\xc4\0", b"\x96\1\2\xa1a\xc3\xc4\0" + b"\x91" * 100_000]
)
async def test_message_that_cannot_be_decoded_is_ignored(message: bytes) -> None:
    network = Network()
    network.workers[0].receive(message)
    network.echo_from(1, 2)

    assert len(await network.workers[0].request("echo")) == 2


async def test_replies_in_progress_are_cancelled_at_the_end() -> None:
    async def never(_: bytes) -> bytes:
        await asyncio.Event().wait()
        return b""

    network = Network()
    network.workers[1].handle("echo", never)
    assert await network.workers[0].request("echo", to=[1], timeout_s=SOON_S) == {}

    await network.workers[1].close()
