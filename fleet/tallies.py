"""Fast counters for the hot path: plain numbers that one thread adds to.

`prometheus_client` locks each value and hashes each label: one or two microseconds per addition, and a request has a dozen.
Names, types and values on `/metrics` are the same.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

NO_LABEL = ""


class Tally(Collector):
    """A counter `kvatlas_<name>_total` with at most one label.

    Args:
        name: name without prefix and suffix.
        text: text for `# HELP`.
        label: name of the label; None for no label.
        registry: gets the counter.
    """

    def __init__(
        self, name: str, text: str, label: str | None = None, *, registry: CollectorRegistry
    ) -> None:
        self._name, self._text, self._label = f"kvatlas_{name}", text, label
        self._counts: defaultdict[str, int] = defaultdict(int)
        if label is None:
            self._counts[NO_LABEL] = 0  # exposed before the first count
        registry.register(self)

    def add(self, value: str = NO_LABEL, n: int = 1) -> None:
        """Add `n`, to the series of the label's value if there is a label."""
        self._counts[value] += n

    def forget(self, value: str) -> None:
        """Remove the series of a label's value."""
        self._counts.pop(value, None)

    def collect(self) -> Iterator[Metric]:
        """Yield the counter."""
        labels = [] if self._label is None else [self._label]
        family = CounterMetricFamily(self._name, self._text, labels=labels)
        for value, count in list(self._counts.items()):
            family.add_metric([str(value)] * len(labels), count)
        yield family

    def describe(self) -> Iterable[Metric]:
        """Yield the family, so that the registry knows its name."""
        return self.collect()


class Times(Collector):
    """A histogram `kvatlas_<name>` of durations.

    Args:
        name: name without prefix.
        text: text for `# HELP`.
        bounds_s: upper bounds of the buckets in seconds, ascending; one more bucket has no bound.
        registry: gets the histogram.
    """

    def __init__(
        self, name: str, text: str, bounds_s: Sequence[float], *, registry: CollectorRegistry
    ) -> None:
        self._name, self._text, self._bounds_s = f"kvatlas_{name}", text, bounds_s
        self._counts = [0] * (len(bounds_s) + 1)
        self._sum_s = 0.0
        registry.register(self)

    def observe(self, seconds: float) -> None:
        """Add one duration."""
        self._counts[bisect_left(self._bounds_s, seconds)] += 1
        self._sum_s += seconds

    def collect(self) -> Iterator[Metric]:
        """Yield the histogram."""
        family = HistogramMetricFamily(self._name, self._text)
        bounds = [*map(str, self._bounds_s), "+Inf"]
        totals = map(float, accumulate(self._counts))
        family.add_metric([], list(zip(bounds, totals, strict=True)), self._sum_s)
        yield family

    def describe(self) -> Iterable[Metric]:
        """Yield the family, so that the registry knows its name."""
        return self.collect()
