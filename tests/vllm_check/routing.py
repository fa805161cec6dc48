"""The routed part: one multi-turn workload under several policies, interleaved, on the same servers."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import yaml

from kvatlas.sim.workload import CACHED_BY_SOURCE, WorkloadResult, WorkloadSpec, run_workload

from .errors import CheckError
from .errors_of_half import Errors, Halfway
from .gateway import envoy_for, kvatlas_for, metric_sums
from .model import COSTLY, MODEL_NAME
from .server import ServerOptions, VllmServer

ROUTED = (
    ServerOptions(gpu_blocks=264, cpu_blocks=240, shape=COSTLY, core=0),
    ServerOptions(gpu_blocks=264, cpu_blocks=240, shape=COSTLY, core=1),
)
"""A core each: what one server computes delays the other's requests only through kvatlas, Envoy and the client."""

WORKLOAD = WorkloadSpec(
    groups=9, conversations=3, turns=4, system_words=1400, user_words=40, reply_tokens=8, concurrency=4
)
"""Nine system prompts of 50 blocks, and what the conversations add: twice what one server holds. The number of conversations
is odd: with an even one round robin would bring every conversation back to the same of two servers by chance."""

LONG_REPLIES = replace(WORKLOAD, reply_tokens=256)
"""Replies as long as those of published runs: while one is generated, the prompts that come meanwhile even out."""

_FILL = replace(WORKLOAD, groups=4, conversations=2, turns=3, cache_salt="fill")


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to route.

    Attributes:
        name: for the report.
        settings: sections of kvatlas' configuration; None for Envoy alone, round robin.
    """

    name: str
    settings: Mapping[str, Any] | None


ROUND_ROBIN, WEIGHTS = Arm("round robin", None), Arm("2:2:1:1", {})


def latency_arm(file: Path) -> Arm:
    """Return the arm of a file with sections of kvatlas' configuration.

    Raises:
        CheckError: the file cannot be read, or holds no sections.
    """
    try:
        sections: Any = yaml.safe_load(file.read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise CheckError(f"cannot read the policy to compare: {error}") from None
    if not isinstance(sections, dict):
        raise CheckError(f"{file}: want sections of kvatlas' configuration, such as 'policy: latency'")
    return Arm("latency", cast("dict[str, Any]", sections))


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of the workload.

    Attributes:
        arm: name of the arm.
        spec: of the workload.
        workload: every turn.
        tiers: prompt tokens that the servers found, by their own name of the tier.
        elapsed_s: seconds of the run.
        server_s: CPU seconds of the servers.
        picks: requests that kvatlas picked a server for.
        expected_tokens: cached tokens that it expected for them.
        picker_s: CPU seconds of kvatlas, its start included.
        scrapes: scrapes of the servers.
        errors: of the times that it predicted in the second half, None if it predicts none.
    """

    arm: str
    spec: WorkloadSpec
    workload: WorkloadResult
    tiers: Mapping[str, int]
    elapsed_s: float
    server_s: float
    picks: int = 0
    expected_tokens: int = 0
    picker_s: float = 0.0
    scrapes: int = 0
    errors: Errors | None = None

    @property
    def token_times_s(self) -> list[float]:
        """Seconds per output token of every turn, without the first token."""
        n_tokens = self.spec.reply_tokens - 1
        return [(turn.total_s - turn.ttft_s) / n_tokens for turn in self.workload.turns]


async def route_all(
    servers: Sequence[VllmServer],
    workload: WorkloadSpec,
    arms: Sequence[Arm],
    folder: Path,
    *,
    seeds: Sequence[int],
    progress: Callable[[str], None],
) -> list[Run]:
    """Run a workload with every seed under every arm, the arms of a seed one after the other, on running servers.

    Arms rotate from seed to seed, so that none always comes first. kvatlas starts anew for each run; the servers go on,
    and a cache salt of its own keeps each run from the blocks of those before it.
    """
    runs: list[Run] = []
    for turn, seed in enumerate(seeds):
        for place in range(len(arms)):
            arm = arms[(turn + place) % len(arms)]
            salt = f"{arm.name}, {workload.reply_tokens} tokens, seed {seed}"
            run = await _route(servers, arm, replace(workload, seed=seed, cache_salt=salt), folder)
            runs.append(run)
            progress(f"{salt}: {run.workload.hit_rate:.1%}, {run.workload.mean_ttft_s * 1000:.0f} ms")
    return runs


async def fill(servers: Sequence[VllmServer], folder: Path) -> None:
    """Send requests before the first measured run, so that no run finds empty caches."""
    await _route(servers, ROUND_ROBIN, _FILL, folder)


async def _route(servers: Sequence[VllmServer], arm: Arm, spec: WorkloadSpec, folder: Path) -> Run:
    pages = [f"{server.url}/metrics" for server in servers]
    async with AsyncExitStack() as stack:
        kvatlas, halfway = None, None
        if arm.settings is not None:
            kvatlas = await stack.enter_async_context(kvatlas_for(servers, folder, arm.settings))
            halfway = Halfway(f"{kvatlas.url}/metrics", spec.n_requests)
        envoy = await stack.enter_async_context(envoy_for(servers, kvatlas))
        started = time.monotonic()
        before, cpu_before = await metric_sums(pages), sum(server.cpu_s() for server in servers)
        result = await run_workload(
            envoy.gateway_url, MODEL_NAME, spec, progress=halfway.ended if halfway is not None else _nothing
        )
        elapsed_s = time.monotonic() - started
        cpu_after, after = sum(server.cpu_s() for server in servers), await metric_sums(pages)
        picker: Mapping[str, float] = Counter()
        errors = None
        if kvatlas is not None and halfway is not None:
            kvatlas.process.check()
            picker = await metric_sums([f"{kvatlas.url}/metrics"])
            errors = await halfway.errors(picker)

    def grown(name: str) -> float:
        return after[name] - before[name]

    return Run(
        arm=arm.name,
        spec=spec,
        workload=result,
        tiers={tier: int(grown(f"{CACHED_BY_SOURCE}{{{tier}}}")) for tier in ("device", "host")},
        elapsed_s=elapsed_s,
        server_s=cpu_after - cpu_before,
        picks=int(picker["kvatlas_picks_total"]),
        expected_tokens=int(picker["kvatlas_usable_prefix_tokens_total"]),
        picker_s=picker["process_cpu_seconds_total"],
        scrapes=int(picker["kvatlas_scrapes_total"]),
        errors=errors,
    )


def _nothing() -> None:
    """Do nothing."""
