"""The size curve as Prometheus families, read when scraped."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from ....fleet.families import gauge
from .curve import CapacityCurve


def capacity_families(curve: CapacityCurve | None) -> Iterator[Metric]:
    """Yield hit rates by size, as last computed; without samples if no curve is kept."""
    rate = gauge(
        "capacity_curve_hit_ratio", "Prompt tokens found with a CPU tier of that size a server.", "gib"
    )
    keys = gauge("capacity_curve_keys", "Blocks that are followed for the curve.", "endpoint")
    if curve is not None:
        for point in curve.latest.points:
            rate.add_metric([f"{point.gib:g}"], point.hit_rate)
        for server in curve.latest.servers:
            keys.add_metric([server.name], server.n_keys)
    yield from (rate, keys)
