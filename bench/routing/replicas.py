"""Several replicas that share what they know, beside one picker: equal picks, hit rate, time to first token.

A workload is replayed on simulated engines and a virtual clock. Requests go to the replicas in turn. Beside them one picker that is
told everything at once decides on every request too: a pick is equal if it is that picker's, or if chance could have made it so.
Messages are late by the delay; changes within 5 ms of a message go together with the next one. `nothing` shares nothing, `counters`
requests and tokens in flight alone, each 200 ms. All replicas read the same scrapes. `latency-chance` has the means of several
workloads, and one picker with other draws. The figures are those of a computation, and the same on any machine.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from statistics import fmean
from typing import NamedTuple

from kvatlas.configs.schema import KVAtlasConfig
from kvatlas.sim.replay.fleet_spec import FleetSpec
from kvatlas.sim.replay.policies import replica_configs
from kvatlas.sim.replay.replica_network import Sharing
from kvatlas.sim.replay.replicated import ReplicatedResult, replay_replicas
from kvatlas.sim.traces.shared_prefix import SharedPrefixSpec, shared_prefix_trace

from ..common.benchmark import Benchmark
from ..common.tables import Cell, Table

FLEET = FleetSpec(servers=16, cpu_blocks=20_000).coarser(4)
"""Engines; four blocks are simulated as one."""

DELAYS_MS = (0, 1, 5, 20, 200)
NOTHING = Sharing(frozenset())
COUNTERS = Sharing(frozenset({"bookings"}), delay_s=0.001, interval_s=0.2)


OTHER_CHANCES = ("second", "third", "fourth")
"""Other draws for one picker: how far apart its own figures are with a policy in which each pick changes those that follow."""

CHANCY = "latency"
"""The policy whose replicas are compared over several workloads too."""


class Case(NamedTuple):
    """One row: the replicas, what they share, and the name of the chance that decides."""

    replicas: int
    shown: str
    sharing: Sharing
    chance: str = ""


def cases() -> Iterator[Case]:
    """Yield the rows of a policy."""
    yield Case(1, "-", NOTHING)
    for replicas in (2, 3, 5):
        for delay_ms in DELAYS_MS:
            yield _late(replicas, delay_ms)
    yield Case(3, "all, 5 ms, 1 % lost", Sharing(delay_s=0.005, loss=0.01))
    yield Case(3, "counters, each 200 ms", COUNTERS)
    yield Case(3, "nothing", NOTHING)


def chance_cases() -> Iterator[Case]:
    """Yield the rows of the comparison over several workloads."""
    yield Case(1, "-", NOTHING)
    for chance in OTHER_CHANCES:
        yield Case(1, f"-, {chance} chance", NOTHING, chance)
    for replicas in (2, 3, 5):
        yield _late(replicas, 5)


def _late(replicas: int, delay_ms: int) -> Case:
    # without a delay nothing waits for other changes either
    batch_s = 0.005 if delay_ms else 0.0
    return Case(replicas, f"all, {delay_ms} ms", Sharing(delay_s=delay_ms / 1000, batch_s=batch_s))


class _Plan(NamedTuple):
    """A table: its name, the configuration of the replicas, its rows, and the workloads of each."""

    name: str
    config: KVAtlasConfig
    rows: Sequence[Case]
    seeds: range


def main(args: argparse.Namespace) -> list[Table]:
    """Replay all cases with all policies and seeds."""
    configs = {
        name: each for name, each in replica_configs(FLEET).items() if name in args.policies.split(",")
    }
    plans = [_Plan(name, config, list(cases()), range(1, 1 + args.seeds)) for name, config in configs.items()]
    if CHANCY in configs:
        seeds = range(1, 1 + args.workloads)
        plans.append(_Plan(f"{CHANCY}-chance", configs[CHANCY], list(chance_cases()), seeds))
    tasks = [
        (plan.config, case, args.rate, args.groups, seed)
        for plan in plans
        for case in plan.rows
        for seed in plan.seeds
    ]
    with ProcessPoolExecutor(args.jobs) as pool:
        found = pool.map(_replayed, tasks)
        return [
            table_of(plan.name, plan.rows, [[next(found) for _ in plan.seeds] for _ in plan.rows])
            for plan in plans
        ]


def _replayed(task: tuple[KVAtlasConfig, Case, float, int, int]) -> ReplicatedResult:
    config, case, rate, groups, seed = task
    spec = SharedPrefixSpec(
        num_groups=groups,
        num_prompts_per_group=10,
        system_prompt_len=6000,
        question_len=1000,
        output_len=200,
        rate=rate,
    )
    trace = shared_prefix_trace(spec, seed=seed)
    return replay_replicas(trace, FLEET, config, case.sharing, replicas=case.replicas, chance=case.chance)


def table_of(name: str, rows: Sequence[Case], results: Sequence[Sequence[ReplicatedResult]]) -> Table:
    """Return a table of the means over the workloads of each row."""
    lines: list[tuple[Cell, ...]] = []
    for case, found in zip(rows, results, strict=True):
        mean = {
            name: fmean(each.figures[name] for each in found) for name in ("hitRate", "ttftMean", "ttftP99")
        }
        lines.append((
            case.replicas,
            case.shown,
            f"{100 * fmean(each.agreement.share for each in found):.1f} %",
            f"{100 * mean['hitRate']:.1f} %",
            f"{1000 * mean['ttftMean']:.0f} ms",
            f"{1000 * mean['ttftP99']:.0f} ms",
            f"{fmean(each.messages for each in found):.1f}",
            f"{fmean(each.n_bytes for each in found) / 1024:.1f} KiB",
            f"{100 * fmean(each.crossed for each in found):.2f} %",
        ))  # fmt: skip
    headings = (
        "replicas", "shared", "equal picks", "hit rate", "TTFT, mean", "TTFT, p99", "messages a request", "bytes a request",
        "crossed picks",
    )  # fmt: skip
    return Table(name=name, title=f"policy {name}", headings=headings, rows=tuple(lines))


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rate", type=float, default=30.0, help="requests per second")
    parser.add_argument(
        "--groups", type=int, default=100, help="groups of ten prompts with the same beginning"
    )
    parser.add_argument("--seeds", type=int, default=1, help="workloads per row")
    parser.add_argument("--workloads", type=int, default=2, help="workloads per row of latency-chance")
    parser.add_argument(
        "--policies", default="weights,approximate,latency", help="policies, separated by commas"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes")


BENCHMARK = Benchmark(name="replicas", about=__doc__, add_options=_add_options, run=main)
