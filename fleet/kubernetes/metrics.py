"""Metrics of discovery and leader election."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from ..families import counter, gauge
from .client.election import Elector
from .discovery import Discovery


def kubernetes_families(discovery: Discovery | None) -> Iterator[Metric]:
    """Yield the state of each followed kind; without samples if there is no discovery."""
    objects = gauge("kubernetes_objects", "Known objects of a kind.", "kind")
    current = gauge("kubernetes_current", "1 when a watch keeps the kind up to date.", "kind")
    lists = counter("kubernetes_lists", "Lists of a kind completed.", "kind")
    rejected = counter("kubernetes_objects_rejected", "Objects that could not be decoded.", "kind")
    failures = counter("kubernetes_failures", "Requests and watches that failed.", "kind", "reason")
    lacking = gauge(
        "kubernetes_lacking", "1 while the cluster lacks a kind, or the right to read it.", "kind", "reason"
    )
    for kind, failure in discovery.problems() if discovery else ():
        if failure.lack is not None:
            lacking.add_metric([kind, failure.lack], 1)
    for kind, follower in discovery.followers() if discovery else ():
        copy = follower.copy
        objects.add_metric([kind], len(copy.objects))
        current.add_metric([kind], copy.synced and copy.problem is None)
        lists.add_metric([kind], copy.n_lists)
        rejected.add_metric([kind], copy.n_rejected)
        for reason, n_failures in copy.n_failures.items():
            failures.add_metric([kind, reason], n_failures)
    yield from (objects, current, lists, rejected, failures, lacking)


def leader_families(elector: Elector | None) -> Iterator[Metric]:
    """Yield whether this process leads; without samples if it takes no part in an election."""
    leads = gauge("leads", "1 when this process leads.")
    changes = counter("lead_changes", "Changes of whether this process leads.")
    if elector is not None:
        leads.add_metric([], elector.leads)
        changes.add_metric([], elector.n_changes)
    yield from (leads, changes)
