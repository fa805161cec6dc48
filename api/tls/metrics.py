"""Prometheus metrics of TLS, read on each scrape."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from ...fleet.families import counter, gauge
from .certificates import Certificates
from .mismatches import Mismatches


def tls_families(certificates: Certificates | None, mismatches: Mismatches) -> Iterator[Metric]:
    """Yield the end of the certificate's validity and its reloads, without samples if there is none, and mismatches."""
    end = gauge("tls_certificate_end_seconds", "Wall-clock time at which the certificate ends.")
    reloads = counter("tls_reloads", "Changes of the certificate's files.", "outcome")
    if certificates is not None:
        end.add_metric([], certificates.current().not_after)
        reloads.add_metric(["used"], certificates.n_reloads)
        reloads.add_metric(["failed"], certificates.n_failures)
    found = counter(
        "tls_mismatches", "Connections whose peer and listener disagree about TLS.", "listener", "peer"
    )
    for (listener, spoken), count in mismatches.counts.items():
        found.add_metric([listener, spoken], count)
    yield from (end, reloads, found)
