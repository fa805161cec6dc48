"""Prometheus metrics of TLS, read on each scrape."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.metrics_core import Metric

from ...fleet.families import counter, gauge
from .certificates import Certificates
from .mismatches import Mismatches


def tls_families(certificates: Iterable[Certificates], mismatches: Mismatches) -> Iterator[Metric]:
    """Yield the end of each certificate's validity and its reloads, by the section that names it, and mismatches."""
    end = gauge("tls_certificate_end_seconds", "Wall-clock time at which the certificate ends.", "setting")
    reloads = counter("tls_reloads", "Changes of the certificate's files.", "setting", "outcome")
    for each in certificates:
        end.add_metric([each.section], each.current().not_after)
        reloads.add_metric([each.section, "used"], each.n_reloads)
        reloads.add_metric([each.section, "failed"], each.n_failures)
    found = counter(
        "tls_mismatches", "Connections whose peer and listener disagree about TLS.", "listener", "peer"
    )
    for (listener, spoken), count in mismatches.counts.items():
        found.add_metric([listener, spoken], count)
    yield from (end, reloads, found)
