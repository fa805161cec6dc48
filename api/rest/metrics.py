"""What REST counts."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter


class RestMetrics:
    """Calls that were not served. One instance a process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._refusals = Counter(
            "kvatlas_rest_refusals", "REST calls that were not served.", ["reason"], registry=registry
        )

    def refused(self, reason: str) -> None:
        """A call was refused: unauthorized, too_many or too_long."""
        self._refusals.labels(reason).inc()
