"""The thread that reads long requests."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from kvatlas.tokenization.errors import NotReadError
from kvatlas.tokenization.reading import Reader

PATIENT_S = 30.0

MakeReader = Callable[..., Reader]


class Held:
    """Work that holds the thread until it is let go."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.is_read = False

    def __call__(self) -> str:
        self.begun.set()
        assert self.go_on.wait(PATIENT_S)
        self.is_read = True
        return "read"


@pytest.fixture
def make_reader() -> Iterator[MakeReader]:
    with ExitStack() as made:

        def make(**settings: Any) -> Reader:
            reader = Reader(**settings)
            made.callback(reader.close)
            return reader

        yield make


@pytest.fixture
def held() -> Iterator[Held]:
    work = Held()
    yield work
    work.go_on.set()


async def test_loop_goes_on_while_a_request_is_read(make_reader: MakeReader, held: Held) -> None:
    reader = make_reader(timeout_s=PATIENT_S)
    reading = asyncio.create_task(reader.run(held, n_bytes=1))
    await asyncio.to_thread(held.begun.wait, PATIENT_S)

    held.go_on.set()

    assert await reading == "read"


async def test_request_that_was_not_read_in_time_is_dropped_unless_it_has_begun(
    make_reader: MakeReader, held: Held
) -> None:
    reader, calls = make_reader(timeout_s=0.01), list[str]()

    with pytest.raises(NotReadError, match=r"longer than 0\.01 s"):
        await reader.run(held, n_bytes=1)
    with pytest.raises(NotReadError):
        await reader.run(lambda: calls.append("late"), n_bytes=1)
    held.go_on.set()
    reader.close()  # waits for what has begun

    assert held.is_read
    assert not calls


async def test_request_is_refused_while_too_many_bytes_wait(make_reader: MakeReader, held: Held) -> None:
    reader = make_reader(timeout_s=PATIENT_S, queue_bytes=10)
    reading = asyncio.create_task(reader.run(held, n_bytes=8))
    await asyncio.to_thread(held.begun.wait, PATIENT_S)

    with pytest.raises(NotReadError, match="8 bytes"):
        await reader.run(lambda: None, n_bytes=3)
    held.go_on.set()
    await reading

    assert await reader.run(lambda: "next", n_bytes=1000) == "next"


async def test_error_of_the_work_is_raised(make_reader: MakeReader) -> None:
    def fail() -> None:
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        await make_reader().run(fail, n_bytes=1)
