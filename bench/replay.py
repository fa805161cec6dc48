"""CPU seconds that `kvatlas replay` takes of one core, by policy.

Use: python -m bench.replay TRACE [--cpu-gb N] [--endpoints N] [--granularity N] [--limit N] [--policy NAME ...]

The wanted figure is a minute at most for 12,000 requests over 8 servers.
"""

from __future__ import annotations

import argparse
import time

from rich.console import Console
from rich.table import Table

from kvatlas.sim.replay.command import ReplayOptions, make_cases, make_plan
from kvatlas.sim.replay.comparison import Case, Plan, replay_once
from kvatlas.sim.replay.policies import POLICIES

from .machine import machine


def main() -> None:
    arguments = _parser().parse_args()
    options = ReplayOptions(
        trace=arguments.trace,
        policies=arguments.policy or tuple(POLICIES),
        cpu_gib=(arguments.cpu_gb,),
        endpoints=(arguments.endpoints,),
        granularity=arguments.granularity,
        limit=arguments.limit,
    )
    plan = make_plan(options)
    table = Table("policy", title=f"{plan.traces[0].name}, {len(plan.traces[0].requests)} requests")
    for heading in ("CPU s", "ms a request", "us a prompt block"):
        table.add_column(heading, justify="right")
    for case in make_cases(options):
        table.add_row(case.policy.name, *_figures(plan, case))
    console = Console()
    console.print(machine())
    console.print(table)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.replay", description=__doc__)
    parser.add_argument("trace", metavar="TRACE", help="as for kvatlas replay")
    parser.add_argument("--cpu-gb", type=float, default=100.0, help="CPU tier of a server in GiB")
    parser.add_argument("--endpoints", type=int, default=8, help="servers")
    parser.add_argument("--granularity", type=int, default=4, help="blocks simulated as one")
    parser.add_argument("--limit", type=int, help="requests at most")
    parser.add_argument("--policy", action="append", metavar="NAME", help="measure it; repeatable")
    return parser


def _figures(plan: Plan, case: Case) -> tuple[str, str, str]:
    began = time.process_time()
    replay_once(plan, case, 0)
    seconds = time.process_time() - began
    trace, block_size = plan.traces[0], case.fleet.block_size * plan.granularity
    n_blocks = trace.prompt_tokens / block_size
    return f"{seconds:.1f}", f"{1e3 * seconds / len(trace.requests):.2f}", f"{1e6 * seconds / n_blocks:.1f}"


if __name__ == "__main__":
    main()
