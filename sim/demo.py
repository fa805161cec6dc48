"""The demo: one workload through Envoy and four simulated servers, first round robin, then with kvatlas."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from .demo_model import MODEL_NAME, write_demo_model
from .envoy import EnvoyProcess, find_envoy, gateway_config, without_picker
from .errors import DemoError
from .fleet import Fleet
from .kvatlas_process import KVAtlasProcess
from .model_text import TokenizerText
from .server import ServerConfig
from .service_times import ServiceTimes
from .workload import TierTokens, WorkloadResult, WorkloadSpec, read_tier_tokens, run_workload

HOST = "127.0.0.1"
ANY_PORT = (HOST, 0)
INTERRUPTED = 130
"""Exit status after Ctrl-C, as of shells."""

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
    """One of the two runs."""

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


@dataclass(frozen=True, slots=True)
class _Stack:
    """Addresses of one run; the REST address is empty without kvatlas."""

    fleet: Fleet
    envoy: EnvoyProcess
    kvatlas: KVAtlasProcess | None = None
    rest_url: str = ""


def run_demo(
    console: Console, *, seed: int = 1, keep: bool = False, workload: WorkloadSpec = WORKLOAD
) -> int:
    """Play the workload twice and compare.

    Both runs start with new servers, so both start with empty caches. Nothing is left running, whatever happens.
    Must be called from the main thread, for its signals.

    Args:
        console: shows progress, addresses and the comparison.
        seed: of the workload.
        keep: leave servers, kvatlas and Envoy running after the comparison, until Ctrl-C.
        workload: the workload; its seed is replaced by `seed`.
    Returns:
        exit status: 0 if kvatlas had the better hit rate and no request failed, 1 if not or if a part did not
        start, 130 if interrupted before the comparison.
    """
    spec = replace(workload, seed=seed)
    try:
        return asyncio.run(_until_signal(_demo(console, spec, keep=keep)))
    except DemoError as error:
        console.print(f"demo: {error}", style="red", markup=False, highlight=False)
        return 1


async def _until_signal(demo: Coroutine[None, None, int]) -> int:
    """Return the demo's status; the first signal cancels it, further ones do not disturb its cleanup."""
    task = asyncio.create_task(demo)

    def interrupt() -> None:
        if not task.cancelling():
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, interrupt)
    await asyncio.wait((task,))
    return INTERRUPTED if task.cancelled() else task.result()


async def _demo(console: Console, spec: WorkloadSpec, *, keep: bool) -> int:
    binary = find_envoy()
    with TemporaryDirectory(prefix="kvatlas-demo-") as name:
        folder = Path(name)
        write_demo_model(folder / "model")
        text = TokenizerText(folder / "model")
        columns = (
            TextColumn("{task.description:<12}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=console) as progress:
            async with _round_robin(text, binary) as stack:
                before = await _play(stack, spec, _bar(progress, "round robin", spec))
        async with _with_kvatlas(text, binary, folder) as stack:
            _print_addresses(console, stack)
            with Progress(*columns, console=console) as progress:
                after = await _play(stack, spec, _bar(progress, "kvatlas", spec))
            _print_comparison(console, before, after)
            if keep:
                console.print("Everything keeps running at the addresses above; Ctrl-C ends it.")
                with suppress(asyncio.CancelledError):  # the expected end
                    await asyncio.Event().wait()
    return 0 if _is_better(before, after) else 1


@asynccontextmanager
async def _round_robin(text: TokenizerText, binary: Path) -> AsyncGenerator[_Stack]:
    async with Fleet(servers(), text) as fleet:
        config = gateway_config(
            "duplex", gateway=ANY_PORT, admin=ANY_PORT, picker=ANY_PORT, servers=fleet.addresses
        )
        async with EnvoyProcess(without_picker(config), binary=binary) as envoy:
            yield _Stack(fleet, envoy)


@asynccontextmanager
async def _with_kvatlas(text: TokenizerText, binary: Path, folder: Path) -> AsyncGenerator[_Stack]:
    file, listener = folder / "kvatlas.yaml", f"{HOST}:0"
    async with Fleet(servers(), text) as fleet:
        fleet.write_kvatlas_config(file, tokenizer=folder / "model", ext_proc=listener, rest=listener)
        async with KVAtlasProcess(file, log=folder / "kvatlas.log") as kvatlas:
            picker = kvatlas.addresses["extProc"]
            config = gateway_config(
                "duplex", gateway=ANY_PORT, admin=ANY_PORT, picker=picker, servers=fleet.addresses
            )
            async with EnvoyProcess(config, binary=binary) as envoy:
                yield _Stack(fleet, envoy, kvatlas, kvatlas.rest_url)


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


async def _play(stack: _Stack, spec: WorkloadSpec, progress: Callable[[], None]) -> Outcome:
    result = await run_workload(stack.envoy.gateway_url, MODEL_NAME, spec, progress=progress)
    if stack.kvatlas is not None:
        stack.kvatlas.check()
    return Outcome(result, await read_tier_tokens(stack.fleet.metrics_urls))


def _bar(progress: Progress, name: str, spec: WorkloadSpec) -> Callable[[], None]:
    return partial(progress.advance, progress.add_task(name, total=spec.n_requests))


def _print_addresses(console: Console, stack: _Stack) -> None:
    rows = (
        ("gateway", f"{stack.envoy.gateway_url}/v1/chat/completions"),
        ("dashboard", f"{stack.rest_url}/ui"),
        ("REST API", f"{stack.rest_url}/docs"),
        ("endpoints", f"{stack.rest_url}/v1/endpoints"),
        ("metrics", f"{stack.rest_url}/metrics"),
        ("Envoy admin", stack.envoy.admin_url),
    )
    for name, url in rows:
        console.print(f"{name:<12} {url}", highlight=False)


def _print_comparison(console: Console, before: Outcome, after: Outcome) -> None:
    table = Table("", "round robin", "kvatlas")
    for column in table.columns[1:]:
        column.justify = "right"
    for name, show in _ROWS:
        table.add_row(name, show(before), show(after))
    console.print(table)
    for outcome in (before, after):
        for error in outcome.workload.errors[:3]:
            console.print(f"failed: {error}", style="red", markup=False, highlight=False)


def _is_better(before: Outcome, after: Outcome) -> bool:
    failed = before.workload.errors or after.workload.errors
    return not failed and after.workload.hit_rate > before.workload.hit_rate


def _requests_by_server(outcome: Outcome) -> str:
    counts = outcome.workload.requests_by_server
    return " ".join(str(counts[name]) for name in sorted(counts))


_ROWS: tuple[tuple[str, Callable[[Outcome], str]], ...] = (
    ("prompt tokens found on GPU", lambda outcome: f"{outcome.gpu_hit_rate:.1%}"),
    ("prompt tokens found on CPU", lambda outcome: f"{outcome.cpu_hit_rate:.1%}"),
    ("prompt tokens found at all", lambda outcome: f"{outcome.workload.hit_rate:.1%}"),
    ("mean time to first token", lambda outcome: f"{outcome.workload.mean_ttft_s * 1000:.0f} ms"),
    ("p90 time to first token", lambda outcome: f"{outcome.workload.p90_ttft_s * 1000:.0f} ms"),
    ("requests per server", _requests_by_server),
    ("failed requests", lambda outcome: str(len(outcome.workload.errors))),
)
