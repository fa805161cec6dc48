"""How long requests wait when many endpoints come at once, by a new configuration.

Use: python -m bench.endpoints [--endpoints 500]

Nobody listens at the endpoints' addresses. Steps between which other requests are answered are timed one by one, in CPU
time of the thread: connecting to the publishers before the switch, and the switch, which is one step; then the switch of
as many endpoints again that nothing was prepared for.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import time

import uvloop

from kvatlas.app.app import App
from kvatlas.configs.endpoints import endpoint_addresses
from kvatlas.configs.schema import EventsConfig, KVAtlasConfig, StaticEndpoint
from kvatlas.fleet.roster import Roster, Wanted


def endpoints(first: int, count: int) -> dict[str, Wanted]:
    """Endpoints on ports of their own, not scraped."""
    rows = (
        StaticEndpoint(
            name=f"e{number}", address=f"127.0.0.1:{number}", events=f"tcp://127.0.0.1:{number}", metrics=""
        )
        for number in range(first, first + count)
    )
    return {row.name: Wanted(endpoint_addresses(row, EventsConfig()), {}) for row in rows}


def milliseconds(since: float) -> float:
    """CPU time of the thread since then."""
    return (time.thread_time() - since) * 1e3


async def measure(n_endpoints: int) -> None:
    """Print the longest step and the sum, with and without preparing."""
    fleet = App(KVAtlasConfig(api_version="kvatlas/v1")).fleet
    roster, wanted = Roster(fleet), endpoints(10_000, n_endpoints)
    steps: list[float] = []
    begin = time.thread_time()
    for _ in roster.preparing(wanted):
        steps.append(milliseconds(begin))
        await asyncio.sleep(0)
        begin = time.thread_time()
    begin = time.thread_time()
    roster.bring_to(wanted)
    switch = milliseconds(begin)
    begin = time.thread_time()
    Roster(fleet).bring_to(endpoints(10_000 + n_endpoints, n_endpoints))
    at_once = milliseconds(begin)
    print(f"{n_endpoints} endpoints, ms of CPU time in one step")
    print(f"connecting, the longest of {len(steps)} steps {max(steps):8.1f}  ({sum(steps):.0f} in all)")
    print(f"the switch                          {switch:8.1f}")
    print(f"the switch, nothing prepared        {at_once:8.1f}")
    for endpoint in list(fleet):
        await fleet.remove(endpoint.name)


def main() -> None:
    """Run the measurement."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--endpoints", type=int, default=500)
    logging.disable(logging.WARNING)
    uvloop.run(measure(parser.parse_args().endpoints))


if __name__ == "__main__":
    main()
