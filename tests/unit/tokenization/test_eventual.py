"""Results known at once, beside results to await."""

from __future__ import annotations

import asyncio

import pytest

from kvatlas.tokenization.eventual import Eventual, Known, Later, recovered


async def later(value: int) -> int:
    await asyncio.sleep(0)
    return value


async def failing(error: Exception) -> int:
    await asyncio.sleep(0)
    raise error


def make(value: int, *, at_once: bool) -> Eventual[int]:
    return Known(value) if at_once else Later(later(value))


@pytest.mark.parametrize("at_once", [True, False])
async def test_steps_are_applied_in_order_whether_the_result_is_known_or_not(*, at_once: bool) -> None:
    steps = make(1, at_once=at_once).map(lambda n: n + 1).map(str)

    assert isinstance(steps, Known if at_once else Later)
    assert await steps == "2"


@pytest.mark.parametrize(("first", "second"), [(True, True), (True, False), (False, True), (False, False)])
async def test_result_is_known_at_once_only_when_that_of_each_step_is(*, first: bool, second: bool) -> None:
    found = make(1, at_once=first).then(lambda n: make(n + 1, at_once=second))

    assert isinstance(found, Known if first and second else Later)
    assert await found == 2


@pytest.mark.parametrize("at_once", [True, False])
async def test_error_is_replaced_whether_it_is_raised_at_once_or_not(*, at_once: bool) -> None:
    def start() -> Eventual[int]:
        if at_once:
            raise LookupError("lost")
        return Later(failing(LookupError("lost")))

    assert await recovered(LookupError, lambda error: len(str(error)), start) == 4
    assert await recovered(LookupError, lambda _: 0, make, 7, at_once=at_once) == 7


@pytest.mark.parametrize("at_once", [True, False])
async def test_other_errors_are_raised(*, at_once: bool) -> None:
    def start() -> Eventual[int]:
        if at_once:
            raise OSError("broken")
        return Later(failing(OSError("broken")))

    with pytest.raises(OSError, match="broken"):
        await recovered(LookupError, lambda _: 0, start)
