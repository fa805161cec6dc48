"""Prometheus families that are made from current state at each scrape of /metrics. Shared by all rooms."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector


class StateCollector(Collector):
    """Collector of families made at each scrape; costs nothing in between.

    Args:
        families: makes the current families.
    """

    def __init__(self, families: Callable[[], Iterable[Metric]]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        """Yield the current families."""
        yield from self._families()

    def describe(self) -> Iterable[Metric]:
        """Return nothing, because names are unknown before the first collection."""
        return ()


def gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    """Return an empty gauge family `kvatlas_<name>`."""
    return GaugeMetricFamily(f"kvatlas_{name}", text, labels=labels)


def counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
    """Return an empty counter family `kvatlas_<name>_total`."""
    return CounterMetricFamily(f"kvatlas_{name}", text, labels=labels)
