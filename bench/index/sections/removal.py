"""Time to remove an endpoint."""

from __future__ import annotations

import time

from rich.progress import Progress

from ..filled import Filled
from ..results import Row, Samples, Section
from ..sizes import Size

_MS = 1e-3


async def measure_removal(filled: Filled, size: Size, progress: Progress) -> Section:
    """Remove the last endpoints of the fleet everywhere, and compare what is left.

    Raises:
        SystemExit: the answers differ then.
    """
    caller, swept, systems = Samples(), Samples(), Samples()
    n_endpoints = len(filled.fleet.endpoints)
    last = range(n_endpoints - size.n_removed, n_endpoints)
    for endpoint in progress.track(last, description="removal"):
        for column, index in filled.indexes.items():
            begin = time.perf_counter()
            index.forget(endpoint)
            caller.add(column, time.perf_counter() - begin)
            while index.sweep():
                continue
            swept.add(column, time.perf_counter() - begin)
        for column, system in filled.systems.items():
            begin = time.perf_counter()
            await system.forget(endpoint)
            systems.add(column, time.perf_counter() - begin)
    await filled.check("after removals", progress)
    return Section(
        "removal",
        "Removal of an endpoint",
        (
            Row("index alone, for the caller", "ms", caller.medians(per=_MS)),
            Row("index alone, until swept", "ms", swept.medians(per=_MS)),
            Row("whole system, for the caller", "ms", systems.medians(per=_MS)),
        ),
    )
