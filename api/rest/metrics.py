"""Metrics of REST."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge


class RestMetrics:
    """Counts refused calls and viewers. One instance per process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._refusals = Counter(
            "kvatlas_rest_refusals", "REST calls that were not served.", ["reason"], registry=registry
        )
        self.live_viewers = Gauge("kvatlas_live_viewers", "Viewers of /v1/live.", registry=registry)
        self.live_frames_skipped = Counter(
            "kvatlas_live_frames_skipped", "Frames that a viewer was too slow to take.", registry=registry
        )
        self.live_viewers_dropped = Counter(
            "kvatlas_live_viewers_dropped",
            "Viewers let go because they took nothing for too long.",
            registry=registry,
        )

    def refused(self, reason: str) -> None:
        """Count a refused call, by a reason of docs/metrics.md."""
        self._refusals.labels(reason).inc()
