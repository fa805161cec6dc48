"""The watchdog against a real event loop that is held."""

from __future__ import annotations

import asyncio
import logging
import threading
import time

import pytest
from prometheus_client import CollectorRegistry

from kvatlas.app import watchdog
from kvatlas.app.watchdog import LoopMetrics, Watchdog
from support.waiting import until


def hold(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.01)


async def test_held_loop_is_counted_with_its_time() -> None:
    registry = CollectorRegistry()

    with Watchdog(LoopMetrics(registry)).watching():
        await asyncio.sleep(0.05)
        hold(0.3)
        await asyncio.sleep(0.05)

    count = registry.get_sample_value("kvatlas_loop_held_seconds_count")
    up_to_a_quarter = registry.get_sample_value("kvatlas_loop_held_seconds_bucket", {"le": "0.25"})
    assert count is not None
    assert up_to_a_quarter is not None
    assert count - up_to_a_quarter >= 1
    assert (registry.get_sample_value("kvatlas_loop_held_longest_seconds") or 0) > 0.28


async def test_long_hold_is_logged_once_while_it_lasts(caplog: pytest.LogCaptureFixture) -> None:
    def lines() -> list[logging.LogRecord]:
        return [record for record in caplog.records if record.name == watchdog.__name__]

    with Watchdog(LoopMetrics(CollectorRegistry()), hung_s=0.2).watching():
        await asyncio.sleep(0.05)
        hold(1.0)
        n_while_held = len(lines())
        await until(lambda: bool(lines()), what="a line")
        hold(0.05)

    assert n_while_held == 1
    assert len(lines()) == 1
    assert "the event loop has been held for" in lines()[0].getMessage()


async def test_nothing_is_left_when_watching_ends() -> None:
    with Watchdog(LoopMetrics(CollectorRegistry())).watching():
        assert "watchdog" in {thread.name for thread in threading.enumerate()}

    assert "watchdog" not in {thread.name for thread in threading.enumerate()}
