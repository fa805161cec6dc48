"""The page of `/metrics`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from kvatlas.api.rest.exposition import PIECE, Exposition


class Seen(Collector):
    """One gauge that notes which threads collect it and write it."""

    def __init__(self) -> None:
        self.collected: list[int] = []
        self.written: list[int] = []

    def __float__(self) -> float:
        self.written.append(threading.get_ident())
        return 7.0

    def collect(self) -> Iterator[Metric]:
        self.collected.append(threading.get_ident())
        family = GaugeMetricFamily("seen", "A gauge.")
        family.add_metric([], self)  # type: ignore[arg-type]  # a number to whoever writes it
        yield family


async def test_page_is_that_of_the_library() -> None:
    registry = CollectorRegistry()
    Counter("calls", "Calls.", ["path"], registry=registry).labels("/a").inc(3)

    page = await Exposition(registry).page()

    assert page.body == generate_latest(registry)
    assert page.headers["content-type"].startswith("text/plain")


class Large(Collector):
    """Families of no sample, of one more than a piece, and of several pieces, which cut a histogram anywhere."""

    def collect(self) -> Iterator[Metric]:
        yield CounterMetricFamily("none", "Nothing.", labels=["name"])
        gauge = GaugeMetricFamily("levels", "Levels,\nin two lines.", labels=["name"])
        for number in range(PIECE + 1):
            gauge.add_metric([f'"{number}\n'], number / 3)
        yield gauge
        histogram = HistogramMetricFamily("times", "Times.", labels=["name"])
        for number in range(PIECE):
            histogram.add_metric([str(number)], [("1", 2.0), ("+Inf", 3.0)], sum_value=4.0)
        yield histogram


async def test_page_is_that_of_the_library_when_families_are_written_in_pieces() -> None:
    registry = CollectorRegistry()
    registry.register(Large())

    assert (await Exposition(registry).page()).body == generate_latest(registry)


async def test_loop_collects_and_a_thread_writes() -> None:
    registry, seen = CollectorRegistry(), Seen()
    registry.register(seen)
    seen.collected.clear()

    pages = await asyncio.gather(*(Exposition(registry).page() for _ in range(2)))

    assert [b"seen 7.0" in each.body for each in pages] == [True, True]
    assert set(seen.collected) == {threading.get_ident()}
    assert threading.get_ident() not in seen.written
