"""Counts of spans, and their metrics. Without OpenTelemetry's library, which a process that sends no spans does not load."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Literal

from prometheus_client.metrics_core import Metric

from ...fleet.families import counter, gauge

Outcome = Literal["sent", "failed", "dropped"]


class SpanCounts:
    """Spans by what became of them, and those that still wait; for any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.n_waiting = 0
        """Spans that have ended and are not sent."""
        self.outcomes: dict[Outcome, int] = {"sent": 0, "failed": 0, "dropped": 0}

    def admit(self, limit: int) -> bool:
        """Count a span that has ended; return whether fewer than `limit` wait before it."""
        with self._lock:
            is_free = self.n_waiting < limit
            if is_free:
                self.n_waiting += 1
            else:
                self.outcomes["dropped"] += 1
            return is_free

    def left(self, outcome: Outcome, n: int) -> None:
        """Count spans that wait no more."""
        with self._lock:
            self.n_waiting -= n
            self.outcomes[outcome] += n


def span_families(counts: SpanCounts) -> Iterator[Metric]:
    """Yield the metrics of spans."""
    spans = counter("spans", "Spans that ended, by what became of them.", "outcome")
    for outcome, n in counts.outcomes.items():
        spans.add_metric([outcome], n)
    waiting = gauge("spans_waiting", "Spans that ended and wait to be sent.")
    waiting.add_metric([], counts.n_waiting)
    yield from (spans, waiting)
