"""`kvatlas demo --compare`: several configurations in real time, on the same simulated servers with the same chats."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ..demo_model import MODEL_NAME, write_demo_model
from ..envoy import find_envoy
from ..errors import CompareError, DemoError
from ..model_text import TokenizerText
from ..picker_process import check_executable
from ..server import ServerConfig
from ..service_times import ServiceTimes
from ..stack import Site
from ..until_signal import until_signal
from .figures import Row, RunFigures, figures_of
from .load import ChatLoad, chats, play
from .report import print_report, to_json
from .subjects import Subject, subjects_of

GPU_BLOCKS, CPU_BLOCKS = 4096, 8192
"""Blocks of a server. By the end of a minute the chats have more than the GPUs of six servers hold if each is everywhere."""

TIMES = ServiceTimes(prefill_s_per_token=0.0003, load_s_per_token=0.00002, step_s=0.012)
"""A prompt of 8,700 tokens takes 2.6 s, so that a mistake is seen, and the simulation fits beside Envoy and kvatlas."""

MAX_NUM_BATCHED_TOKENS = 512
"""Chunked prefill: a missed prompt does not hold up the tokens of other requests."""

MAX_CHATS = 100_000
"""Most chats of a run, which are counted before it: a second of work. At the default rate they last for ten hours."""

MAX_SHOWN = 3
"""Failed requests that are shown: of a run, and of all."""

_COLUMNS = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareOptions:
    """Options of the command.

    Attributes:
        names: policies and configuration files.
        picker: command line of another picker; empty for none.
        servers: number of simulated servers.
        rates: chats per second, one comparison each.
        seconds: time in which chats begin.
        repeats: runs of each, with other chats in each repeat.
        time_scale: real seconds per simulated second.
        seed: of the chats.
        as_json: print JSON instead of tables.
        plot: file for a picture; None for none.
    """

    names: Sequence[str]
    picker: str = ""
    servers: int = 6
    rates: Sequence[float] = (2.6,)
    seconds: float = 60.0
    repeats: int = 1
    time_scale: float = 1.0
    seed: int = 1
    as_json: bool = False
    plot: Path | None = None


def run_compare(console: Console, options: CompareOptions, *, load: ChatLoad | None = None) -> int:
    """Run the comparison and print it. Nothing is left running, whatever happens. For the main thread, for its signals.

    Args:
        console: shows the results.
        options: of the command.
        load: form of the chats; its rate, seconds and seed are those of the options.
    Returns:
        exit status: 0, 1 if a request failed, or 130 if interrupted.

    Raises:
        KVAtlasError: a configuration or option cannot be used, or a part did not start.
    """
    _check_length(options)
    subjects = subjects_of(options.names, command=options.picker)
    if options.picker:
        check_executable(options.picker)
    binary = find_envoy()
    if options.plot is not None:
        from .plot import check_plot  # noqa: PLC0415 - matplotlib, which an installation may lack

        check_plot(options.plot)
    shape = load or ChatLoad(rate=1.0, seconds=1.0)
    return asyncio.run(until_signal(_compare(console, options, subjects, shape, binary)))


def _check_length(options: CompareOptions) -> None:
    for rate in options.rates:
        n = rate * options.seconds
        if not n <= MAX_CHATS:
            raise CompareError(
                f"--rate {rate:g} with --seconds {options.seconds:g}: {n:.0f} chats in a run, expected at most "
                f"{MAX_CHATS}; lower one of them"
            )


async def _compare(
    console: Console, options: CompareOptions, subjects: Sequence[Subject], shape: ChatLoad, binary: Path
) -> int:
    found: dict[tuple[str, float], list[RunFigures]] = {}
    errors: list[str] = []
    with TemporaryDirectory(prefix="kvatlas-compare-") as name:
        model = Path(name, "model")
        write_demo_model(model)
        text = TokenizerText(model)
        with Progress(*_COLUMNS, console=Console(stderr=True)) as progress:
            for load, subject in _runs(options, subjects, shape):
                with TemporaryDirectory(dir=name) as folder:
                    site = Site(
                        _servers(options.servers, options.time_scale), text, model, binary, Path(folder)
                    )
                    figures, failures = await _run(site, subject, load, options.time_scale, progress)
                found.setdefault((subject.name, load.rate), []).append(figures)
                errors += (f"{subject.name}: {each}" for each in failures[:MAX_SHOWN])
    rows = [
        Row(policy=subject.name, rate=rate, runs=tuple(found[subject.name, rate]))
        for rate in options.rates
        for subject in subjects
    ]
    _show(console, options, rows, replace(shape, seconds=options.seconds, seed=options.seed))
    for error in errors[:MAX_SHOWN]:
        Console(stderr=True).print(f"failed: {error}", style="red", markup=False, highlight=False)
    return 1 if errors else 0


def _runs(
    options: CompareOptions, subjects: Sequence[Subject], shape: ChatLoad
) -> Iterator[tuple[ChatLoad, Subject]]:
    """Yield the runs in order: repeats are interleaved, so that what changes on the machine meets all policies."""
    for repeat in range(options.repeats):
        for rate in options.rates:
            load = replace(shape, rate=rate, seconds=options.seconds, seed=options.seed + repeat)
            for subject in subjects:
                yield load, subject


async def _run(
    site: Site, subject: Subject, load: ChatLoad, time_scale: float, progress: Progress
) -> tuple[RunFigures, list[str]]:
    """Run one policy under one load; return its figures and the failed requests."""
    total = load.turns * sum(1 for _ in chats(load))
    task = progress.add_task(f"{subject.name}, {load.rate:g}/s, seed {load.seed}", total=total)
    try:
        async with subject.running(site) as stack:
            played = await play(
                stack.envoy.gateway_url,
                MODEL_NAME,
                load,
                time_scale=time_scale,
                progress=lambda: progress.advance(task),
            )
            stack.check()
            without_picker = 0 if stack.picker is None else await stack.envoy.n_without_picker()
    except DemoError as error:
        raise DemoError(f"{subject.name}: {error}") from error
    return figures_of(played, time_scale=time_scale, without_picker=without_picker), played.errors


def _servers(number: int, time_scale: float) -> list[ServerConfig]:
    return [
        ServerConfig(
            name=f"vllm-{each}",
            model=MODEL_NAME,
            gpu_blocks=GPU_BLOCKS,
            cpu_blocks=CPU_BLOCKS,
            max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS,
            times=TIMES,
            time_scale=time_scale,
        )
        for each in range(number)
    ]


def _show(console: Console, options: CompareOptions, rows: Sequence[Row], load: ChatLoad) -> None:
    if options.as_json:
        settings = asdict(load) | {"rate": list(options.rates), "servers": options.servers}
        settings |= {"repeats": options.repeats, "timeScale": options.time_scale, "picker": options.picker}
        document = to_json(rows, settings=settings, time_scale=options.time_scale)
        console.out(document.decode(), end="", highlight=False)
    else:
        print_report(console, rows, time_scale=options.time_scale)
    if options.plot is not None:
        from .plot import write_plot  # noqa: PLC0415 - matplotlib, which an installation may lack

        title = f"{options.servers} servers, {load.turns} turns a chat, chats begin for {options.seconds:g} s"
        write_plot(options.plot, rows, title=title)
