"""Share of requests that meet their objectives, by policy, in virtual time.

Use: python -m kvatlas.sim.slo [--load N ...] [--seeds N] [--jobs N] [--write FILE]                 (or: make slo ARGS=...)

Thirty-six replays take some ten minutes.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from rich.console import Console

from .attainment import attained, page, table

LOADS = (0.83, 0.9, 1.0)
SUSTAINED = 0.92
"""Agents per second at which the mean time to first token of 2:2:1:1 passes two seconds on these servers."""


def main() -> None:
    """Print the table, and write the page if one is named."""
    parser = argparse.ArgumentParser(prog="python -m kvatlas.sim.slo", description=__doc__)
    parser.add_argument("--load", type=float, action="append", metavar="N", help="agents/s; repeatable")
    parser.add_argument("--seeds", type=int, default=4, metavar="N", help="replays per figure")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes")
    parser.add_argument("--write", type=Path, metavar="FILE", help="the page to write")
    arguments = parser.parse_args()
    found = attained(arguments.load or LOADS, seeds=arguments.seeds, jobs=arguments.jobs)
    Console().print(table(found, sustained=SUSTAINED), markup=False, soft_wrap=True)
    if arguments.write is not None:
        arguments.write.write_text(page(found, sustained=SUSTAINED, seeds=arguments.seeds))


if __name__ == "__main__":
    main()
