"""The demo: one workload through Envoy and four simulated servers: round robin, and kvatlas with both policies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from .demo_model import MODEL_NAME, write_demo_model
from .envoy import find_envoy
from .errors import DemoError
from .kvatlas_process import KVAtlasProcess
from .model_text import TokenizerText
from .server import ServerConfig
from .service_times import ServiceTimes
from .stack import Site, Stack, round_robin, with_kvatlas
from .until_signal import until_signal
from .workload import TierTokens, WorkloadResult, WorkloadSpec, read_tier_tokens, run_workload

N_SERVERS = 4

WORKLOAD = WorkloadSpec(
    groups=16, conversations=5, turns=4, system_words=900, user_words=50, reply_tokens=24, concurrency=8
)
"""A system prompt is 65 blocks, a turn adds 6: in all 1,050 blocks of system prompts and by the end 1,900 blocks of
conversations."""

GPU_BLOCKS = 512
CPU_BLOCKS = 832
"""Sized so that the choice of the server matters. Round robin sends every system prompt to every server, more than a GPU
or CPU tier holds, and each turn to another server than the turn before, so the blocks that the next request needs are
evicted or elsewhere. A server that keeps its own groups needs about 750 blocks, which GPU and CPU together hold."""

MAX_NUM_BATCHED_TOKENS = 512
"""Chunked prefill: a missed system prompt delays other requests by at most half of its own time."""

TIMES = ServiceTimes(prefill_s_per_token=0.0003, load_s_per_token=0.00002, step_s=0.012)
"""A missed system prompt costs 320 ms, loading it from the CPU tier 20 ms."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One of the runs."""

    name: str
    workload: WorkloadResult
    tiers: TierTokens

    @property
    def gpu_hit_rate(self) -> float:
        """Share of the prompt tokens found on a GPU, 0 to 1."""
        return self.tiers.gpu / max(1, self.workload.prompt_tokens)

    @property
    def cpu_hit_rate(self) -> float:
        """Share of the prompt tokens found in CPU memory only, 0 to 1."""
        return self.tiers.cpu / max(1, self.workload.prompt_tokens)


def run_demo(
    console: Console, *, seed: int = 1, keep: bool = False, workload: WorkloadSpec = WORKLOAD
) -> int:
    """Play the workload three times and compare: round robin, kvatlas with its weights, and with `policy: latency`.

    All runs start with new servers, so all start with empty caches. Nothing is left running, whatever happens.
    Must be called from the main thread, for its signals.

    Args:
        console: shows progress, addresses and the comparison.
        seed: of the workload.
        keep: leave servers, kvatlas and Envoy running after the comparison, until Ctrl-C.
        workload: the workload; its seed is replaced by `seed`.
    Returns:
        exit status: 0 if kvatlas had the better hit rate with both policies and no request failed, 1 if not or if a part did not
        start, 130 if interrupted before the comparison.
    """
    spec = replace(workload, seed=seed)
    try:
        return asyncio.run(until_signal(_demo(console, spec, keep=keep)))
    except DemoError as error:
        console.print(f"demo: {error}", style="red", markup=False, highlight=False)
        return 1


async def _demo(console: Console, spec: WorkloadSpec, *, keep: bool) -> int:
    binary = find_envoy()
    with TemporaryDirectory(prefix="kvatlas-demo-") as name:
        model = Path(name, "model")
        write_demo_model(model)
        site = Site(servers(), TokenizerText(model), model, binary, Path(name))
        with _progress(console) as progress:
            async with round_robin(site) as stack:
                outcomes = [await _play("round robin", stack, spec, progress)]
            async with with_kvatlas(site) as stack:
                outcomes.append(await _play("kvatlas 2:2:1:1", stack, spec, progress))
        async with with_kvatlas(site, {"policy": "latency"}) as stack:
            _print_addresses(console, stack)
            with _progress(console) as progress:
                outcomes.append(await _play("kvatlas latency", stack, spec, progress))
            _print_comparison(console, outcomes)
            if keep:
                console.print("Everything keeps running at the addresses above; Ctrl-C ends it.")
                with suppress(asyncio.CancelledError):  # the expected end
                    await asyncio.Event().wait()
    return 0 if _is_better(outcomes) else 1


def _progress(console: Console) -> Progress:
    description = TextColumn("{task.description:<15}")
    return Progress(description, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console)


def servers() -> list[ServerConfig]:
    """Return the configurations of the simulated servers."""
    return [
        ServerConfig(
            name=f"vllm-{number}",
            model=MODEL_NAME,
            gpu_blocks=GPU_BLOCKS,
            cpu_blocks=CPU_BLOCKS,
            max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS,
            times=TIMES,
        )
        for number in range(N_SERVERS)
    ]


async def _play(name: str, stack: Stack, spec: WorkloadSpec, progress: Progress) -> Outcome:
    advance: Callable[[], None] = partial(progress.advance, progress.add_task(name, total=spec.n_requests))
    result = await run_workload(stack.envoy.gateway_url, MODEL_NAME, spec, progress=advance)
    stack.check()
    return Outcome(name, result, await read_tier_tokens(stack.fleet.metrics_urls))


def _print_addresses(console: Console, stack: Stack) -> None:
    rest_url = stack.picker.rest_url if isinstance(stack.picker, KVAtlasProcess) else ""
    rows = (
        ("gateway", f"{stack.envoy.gateway_url}/v1/chat/completions"),
        ("dashboard", f"{rest_url}/ui"),
        ("REST API", f"{rest_url}/docs"),
        ("endpoints", f"{rest_url}/v1/endpoints"),
        ("metrics", f"{rest_url}/metrics"),
        ("Envoy admin", stack.envoy.admin_url),
    )
    for name, url in rows:
        console.print(f"{name:<12} {url}", highlight=False)


def _print_comparison(console: Console, outcomes: Sequence[Outcome]) -> None:
    table = Table("", *(outcome.name for outcome in outcomes))
    for column in table.columns[1:]:
        column.justify = "right"
    for name, show in _ROWS:
        table.add_row(name, *map(show, outcomes))
    console.print(table)
    for outcome in outcomes:
        for error in outcome.workload.errors[:3]:
            console.print(f"failed: {error}", style="red", markup=False, highlight=False)


def _is_better(outcomes: Sequence[Outcome]) -> bool:
    before, *after = (outcome.workload for outcome in outcomes)
    failed = any(outcome.workload.errors for outcome in outcomes)
    return not failed and all(each.hit_rate > before.hit_rate for each in after)


def _requests_by_server(outcome: Outcome) -> str:
    counts = outcome.workload.requests_by_server
    return "/".join(str(counts[name]) for name in sorted(counts))


_ROWS: tuple[tuple[str, Callable[[Outcome], str]], ...] = (
    ("prompt tokens found on GPU", lambda outcome: f"{outcome.gpu_hit_rate:.1%}"),
    ("prompt tokens found on CPU", lambda outcome: f"{outcome.cpu_hit_rate:.1%}"),
    ("prompt tokens found at all", lambda outcome: f"{outcome.workload.hit_rate:.1%}"),
    ("mean time to first token", lambda outcome: f"{outcome.workload.mean_ttft_s * 1000:.0f} ms"),
    ("p90 time to first token", lambda outcome: f"{outcome.workload.p90_ttft_s * 1000:.0f} ms"),
    ("requests per server", _requests_by_server),
    ("failed requests", lambda outcome: str(len(outcome.workload.errors))),
)
