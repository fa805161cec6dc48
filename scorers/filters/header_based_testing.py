"""`header-based-testing-filter`: keeps the endpoints that a request header names. For conformance tests only."""

from __future__ import annotations

import numpy as np

from ..core.base import Rng
from ..core.candidates import Candidates
from ..core.model import RequestView
from ..core.params import NoParams
from ..core.ratings import Verdicts
from ..core.registry import Registry

HEADER = "test-epp-endpoint-selection"
"""Header with the addresses. Source: the conformance tests of the Gateway API Inference Extension."""

MAX_NAMED = 256
"""Most addresses that are read from one header, which clients send."""


class HeaderBasedTestingFilter:
    """Filter that drops endpoints which the request header does not name; without the header it drops all.

    The header has addresses separated by commas, each `HOST:PORT`, or `HOST` for every port of that host.
    """

    type = "header-based-testing-filter"

    def judge(self, request: RequestView, candidates: Candidates, *, rng: Rng) -> Verdicts:  # noqa: ARG002 (Filter)
        """Return one verdict per candidate."""
        parts = request.headers.get(HEADER, "").split(",", MAX_NAMED)[:MAX_NAMED]
        named = {part.strip() for part in parts}
        keep = [not named.isdisjoint({address, *_hosts(address)}) for address in candidates.addresses]
        return Verdicts(np.array(keep, np.bool_), _reasons)


def _hosts(address: str) -> tuple[str, str]:
    """Return the host of `HOST:PORT` as written, and without the brackets of IPv6."""
    host = address.rpartition(":")[0]
    return host, host.strip("[]")


def _reasons(dropped: Candidates) -> list[str]:
    return [f"the header {HEADER} does not name {address}" for address in dropped.addresses]


def register(registry: Registry) -> None:
    """Register `header-based-testing-filter`, which takes no parameters."""
    registry.filters.add(HeaderBasedTestingFilter.type, NoParams, lambda _p, _c: HeaderBasedTestingFilter())
