"""Prometheus metrics of asking engines for token ids; docs/metrics.md describes each."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram

_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)


class RemoteMetrics:
    """Counters of requests to engines for token ids.

    Args:
        registry: where they are shown.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            "kvatlas_remote_tokenizations",
            "Questions to engines for token ids, by how they ended.",
            ["outcome"],
            registry=registry,
        )
        self._seconds = Histogram(
            "kvatlas_remote_tokenization_seconds",
            "Time that questions to engines for token ids took.",
            buckets=_SECONDS,
            registry=registry,
        )

    def ended(self, outcome: str, seconds: float) -> None:
        """Count a request that ended, or ids that were kept from an earlier one (`cached`)."""
        self._requests.labels(outcome).inc()
        if outcome != "cached":
            self._seconds.observe(seconds)
