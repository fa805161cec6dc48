"""`python -m kvatlas.sim.cost_tables`: errors of the cost model, and objectives met, on servers of two speeds by load.

A wide table takes minutes; `--load` and `--granularity` make it smaller.
"""

from __future__ import annotations

import argparse

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from ..configs.schema import WeightsConfig
from .replay.comparison import Case, Plan, compare
from .replay.policies import named_policy
from .replay.prediction_errors import mape, prediction_log
from .replay.simulation import Timing
from .traces.objectives import with_objectives
from .workloads import AGENTS, TWO_SPEEDS, agents

LOADS = (0.4, 0.6, 0.8, 1.0, 1.2)
"""Agents that start per second."""

WARM_UP = 200
"""First predictions that are not counted: nearly all of them are made before anything is learned."""

SECONDS = 240.0
"""Simulated time in which agents start."""

POLICIES = ("precise", "latency", "slo")


def error_table(loads: list[float], granularity: int) -> Table:
    """Return the mean absolute relative errors of both times by load, policy, and label of the speed."""
    table = Table(
        "agents/s", "routed by", "label", "mean TTFT, s", title="errors of predictions (MAPE)", box=SIMPLE
    )
    for name in ("TTFT", "first 200", "TPOT"):
        table.add_column(name, justify="right")
    for load in loads:
        trace = agents(AGENTS, SECONDS, load, 1)
        for weights, label in (
            (None, "speed"),
            (None, ""),
            (WeightsConfig(), "speed"),
            (WeightsConfig(), ""),
        ):
            log = prediction_log(
                trace, TWO_SPEEDS, group_label=label, weights=weights, granularity=granularity
            )
            mean_s = sum(each.observed_ms for each in log.ttft) / len(log.ttft) / 1000.0
            errors = mape(log.ttft, after=WARM_UP), mape(log.ttft[:WARM_UP]), mape(log.tpot, after=WARM_UP)
            cells = (f"{each:.1%}" for each in errors)
            policy = "latency" if weights is None else "2:2:1:1"
            table.add_row(f"{load:g}", policy, label or "none", f"{mean_s:.2f}", *cells)
    return table


def objectives_table(loads: list[float], granularity: int) -> Table:
    """Return the shares of requests that met all of their objectives, by load and policy."""
    table = Table("agents/s", "policy", title="objectives met", box=SIMPLE)
    for name in ("met", "TTFT mean, s", "p99, s", "hit rate"):
        table.add_column(name, justify="right")
    for load in loads:
        plan = Plan((with_objectives(agents(AGENTS, SECONDS, load, 1)),), Timing(), granularity)
        cases = [Case(named_policy(name), TWO_SPEEDS, 100.0) for name in POLICIES]
        for outcome in compare(plan, cases):
            figures = {name: each.mean for name, each in outcome.figures.items()}
            table.add_row(
                f"{load:g}",
                outcome.policy,
                f"{figures['sloMet']:.1%}",
                f"{figures['ttftMean']:.2f}",
                f"{figures['ttftP99']:.1f}",
                f"{figures['hitRate']:.1%}",
            )
    return table


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--load", type=float, action="append", help="agents per second; repeatable")
    parser.add_argument("--granularity", type=int, default=4, help="blocks that are simulated as one")
    options = parser.parse_args()
    loads: list[float] = options.load or list(LOADS)
    console = Console()
    console.print(error_table(loads, options.granularity))
    console.print(objectives_table(loads, options.granularity))


if __name__ == "__main__":
    main()
