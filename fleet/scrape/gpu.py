"""Utilization of GPUs, from the pages of NVIDIA's DCGM exporter."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

from .exposition import Exposition

SERIES = "DCGM_FI_DEV_GPU_UTIL"
"""Gauge per GPU, in percent."""

_RANK = re.compile(r"-rank-[0-9]+$")


def utilization_of(body: bytes, names: Iterable[str]) -> Mapping[str, float]:
    """Return the utilization of the busiest GPU of each endpoint, 0 to 1; NaN if the page shows none of its GPUs.

    The exporter names the pod of a GPU in the label `pod`. A GPU without it, as on a page of a sidecar, counts for all.

    Args:
        body: Prometheus text format 0.0.4.
        names: names of endpoints.
    Raises:
        ScrapeError: a line of the series is malformed, or there are too many.
    """
    found: dict[str | None, float] = {}
    for sample in Exposition(body).samples(SERIES):
        if 0 <= sample.value <= 100:
            pod = sample.labels().get("pod")
            found[pod] = max(found.get(pod, 0.0), sample.value / 100)
    return {name: _highest(found, (None, *_pods(name))) for name in names}


def _pods(name: str) -> tuple[str, str]:
    """Return the possible names of an endpoint's pod: its own, without namespace, and that without the rank."""
    own = name.rpartition("/")[2]
    return own, _RANK.sub("", own)


def _highest(found: Mapping[str | None, float], pods: Iterable[str | None]) -> float:
    return max((found[pod] for pod in pods if pod in found), default=math.nan)
