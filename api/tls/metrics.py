"""Prometheus metrics of TLS, read on each scrape."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from ...fleet.families import counter, gauge
from .certificates import Certificates


def tls_families(certificates: Certificates | None) -> Iterator[Metric]:
    """Yield the end of the certificate's validity and its reloads; without samples if there is none."""
    end = gauge("tls_certificate_end_seconds", "Wall-clock time at which the certificate ends.")
    reloads = counter("tls_reloads", "Changes of the certificate's files.", "outcome")
    if certificates is not None:
        end.add_metric([], certificates.current().not_after)
        reloads.add_metric(["used"], certificates.n_reloads)
        reloads.add_metric(["failed"], certificates.n_failures)
    yield from (end, reloads)
