"""Questions between workers: everybody's answer, in whatever order and however long, and who is silent."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.app.workers.talk import MAX_UNFINISHED, PART_BYTES, Talk
from kvatlas.fleet.errors import ConfigRefusedError

ALL = range(3)
SOON_S = 0.05


class Room:
    """Workers that talk, and what becomes of their datagrams."""

    def __init__(self, *, lost: Callable[[int], bool] = lambda _: False, seed: int = 0) -> None:
        self.lost, self.rng = lost, random.Random(seed)
        self.on_the_way: list[tuple[int, bytes]] = []
        self.workers = [Talk(number, [each for each in ALL if each != number], self.send) for number in ALL]

    async def send(self, to: int, datagram: bytes) -> None:
        """Datagrams overtake each other."""
        if self.lost(to):
            return
        self.on_the_way.append((to, datagram))
        await asyncio.sleep(0)
        if self.on_the_way:
            where = self.rng.randrange(len(self.on_the_way))
            receiver, arrived = self.on_the_way.pop(where)
            self.workers[receiver].heard(arrived)

    def answering(self, *workers: int) -> None:
        """These repeat what they are asked, and say who they are."""
        for worker in workers:
            self.workers[worker].on("echo", repeating(worker))


def repeating(worker: int) -> Callable[[bytes], asyncio.Future[bytes]]:
    async def repeat(body: bytes) -> bytes:
        await asyncio.sleep(0)
        return bytes([worker]) + body

    return lambda body: asyncio.ensure_future(repeat(body))


@given(
    sizes=st.lists(st.sampled_from([0, 1, PART_BYTES, PART_BYTES + 1, 5 * PART_BYTES]), max_size=4),
    seed=st.integers(0, 99),
)
def test_every_question_gets_its_own_answers_when_datagrams_overtake_each_other(
    sizes: list[int], seed: int
) -> None:
    async def talk() -> None:
        room = Room(seed=seed)
        room.answering(*ALL)
        bodies = [bytes([number]) * size for number, size in enumerate(sizes)]
        answers = await asyncio.gather(*(room.workers[0].ask("echo", body) for body in bodies))
        assert answers == [{1: b"\1" + body, 2: b"\2" + body} for body in bodies]

    asyncio.run(talk())


async def fails(_: bytes) -> bytes:
    raise ConfigRefusedError("no")


@pytest.mark.parametrize("why", ["lost", "not_known", "fails"])
async def test_worker_without_an_answer_is_silent(why: str, caplog: pytest.LogCaptureFixture) -> None:
    room = Room(lost=lambda to: why == "lost" and to == 1)
    room.answering(2, *([1] if why == "lost" else []))
    if why == "fails":
        room.workers[1].on("echo", fails)

    answers = await room.workers[0].ask("echo", b"?", patience_s=SOON_S)

    assert (answers, room.workers[0].silent(answers)) == ({2: b"\2?"}, (1,))
    assert ("asked for echo: no" in caplog.text) == (why == "fails")


async def test_only_who_is_asked_answers() -> None:
    room = Room()
    room.answering(*ALL)

    assert await room.workers[0].ask("echo", b"?", of=[2]) == {2: b"\2?"}
    assert await room.workers[0].ask("echo", b"?", of=[]) == {}


async def test_answer_that_comes_late_or_unasked_changes_nothing() -> None:
    late = asyncio.Event()

    async def waits(_: bytes) -> bytes:
        await late.wait()
        return b"late"

    room = Room()
    room.workers[1].on("echo", waits)
    assert await room.workers[0].ask("echo", of=[1], patience_s=SOON_S) == {}
    room.answering(1)
    late.set()

    assert await room.workers[0].ask("echo", b"?", of=[1]) == {1: b"\1?"}


async def test_messages_that_never_end_are_forgotten() -> None:
    asked: list[bytes] = []
    one = Talk(0, [1], lambda _, datagram: _keep(asked, datagram))
    other = Talk(1, [0], lambda _, datagram: _keep([], datagram))
    for _ in range(3 * MAX_UNFINISHED):
        await one.ask("echo", bytes(2 * PART_BYTES), patience_s=0)
    for datagram in asked[::2]:
        other.heard(datagram)

    assert other.n_unfinished <= MAX_UNFINISHED


@pytest.mark.parametrize("datagram", [b"", b"\x93\1\2\3", b"\x97\1\2\xa1a\xc3\5\3\xc4\0"])
async def test_datagram_that_makes_no_sense_is_ignored(datagram: bytes) -> None:
    room = Room()
    room.workers[0].heard(datagram)
    room.answering(1, 2)

    assert len(await room.workers[0].ask("echo")) == 2


async def test_answers_that_take_long_are_left_open_at_the_end() -> None:
    async def never(_: bytes) -> bytes:
        await asyncio.Event().wait()
        return b""

    room = Room()
    room.workers[1].on("echo", never)
    assert await room.workers[0].ask("echo", of=[1], patience_s=SOON_S) == {}

    await room.workers[1].close()


async def _keep(kept: list[bytes], datagram: bytes) -> None:
    kept.append(datagram)
