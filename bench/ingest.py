"""Block events per CPU second from ZMQ bytes to index: kvatlas with each of its index cores, and Dynamo.

Use: python bench/ingest.py [--quick] [--rounds 3]

A process with real PUB sockets publishes the same streams (`ingest_load.py`) to one consumer after the other
(`ingest_consumers.py`), each a fresh process: `Subscriber` and `Atlas` in one, Dynamo's `SelectionService` where
`ai-dynamo-runtime` is installed. CPU is that of the whole consuming process, so waiting and other work on the machine do
not count. Consumers take turns and medians are shown. After the first round every publisher's residencies and the overlap
of a prompt are compared with what was published.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import platform
import resource
import statistics
from collections.abc import Callable, Generator
from importlib import metadata
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ingest_consumers import DYNAMO, DYNAMO_THREADS, TIMEOUT_S, Belief, consume
from ingest_load import PHASES, Load, Mix, publish
from rich.console import Console
from rich.table import Table

from kvatlas.indexer.errors import IndexerError
from kvatlas.indexer.factory import index_core

MIXES: tuple[Mix, Mix] = ("bulk", "churn")
PUBLISHERS = (8, 64, 512)
MESSAGES: dict[Mix, int] = {"bulk": 512, "churn": 2048}
"""Measured messages of one run over all publishers."""

QUICK_PUBLISHERS = (8, 64)
QUICK_SHARE = 4

Rates = dict[str, float]
"""Median million block events a CPU second by consumer."""


def main() -> None:
    arguments = parse()
    console = Console()
    consumers = available(console)
    publishers = QUICK_PUBLISHERS if arguments.quick else PUBLISHERS
    rounds = 1 if arguments.quick else arguments.rounds
    raise_file_limit()
    rows: list[tuple[Load, Rates]] = []
    for mix in MIXES:
        for n_publishers in publishers:
            n_messages = MESSAGES[mix] // n_publishers // (QUICK_SHARE if arguments.quick else 1)
            load = Load(mix, n_publishers, max(1, n_messages))
            with console.status(f"{mix}, {n_publishers} publishers"):
                rows.append((load, measure(load, consumers, rounds)))
    console.print(table(rows, consumers))
    console.print(f"CPU of the consuming process, medians of {rounds} interleaved rounds. {machine()}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one round of small loads, under 30 s")
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


def available(console: Console) -> list[str]:
    """Consumers that are installed; says how to install what is not."""
    consumers = ["native", "reference"]
    try:
        index_core("native")
    except IndexerError as error:
        consumers.remove("native")
        console.print(f"Without the native core: {error}")
    if dynamo_version() is None:
        console.print("Without Dynamo: python -m pip install ai-dynamo-runtime")
    else:
        consumers.append(DYNAMO)
    return consumers


def dynamo_version() -> str | None:
    """Version of `ai-dynamo-runtime`, None when it is not installed."""
    try:
        return metadata.version("ai-dynamo-runtime")
    except metadata.PackageNotFoundError:
        return None


def raise_file_limit() -> None:
    """Let this process and its children open all files they may; 512 publishers need some thousands."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def measure(load: Load, consumers: list[str], rounds: int) -> Rates:
    """Median rates of all consumers on one load.

    Raises:
        SystemExit: a consumer does not end up with what was published.
    """
    rates: dict[str, list[float]] = {name: [] for name in consumers}
    with child(publish, load) as publisher:
        addresses: list[str] = receive(publisher)
        for number in range(rounds):
            for name in consumers:
                seconds, belief = run(publisher, name, load, addresses)
                if number == 0:
                    check(name, load, belief)
                rates[name].append(load.n_block_events / seconds / 1e6)
        publisher.send(None)
    return {name: statistics.median(own) for name, own in rates.items()}


def run(publisher: Connection, name: str, load: Load, addresses: list[str]) -> tuple[float, Belief]:
    """CPU seconds of the measured phase in a fresh process, and what it believes then."""
    seconds = 0.0
    with child(consume, name, load, addresses) as consumer:
        for phase in PHASES:
            receive(consumer)
            publisher.send(phase)
            seconds = receive(consumer)
        return seconds, receive(consumer)


def check(name: str, load: Load, belief: Belief) -> None:
    """Compare with what was published."""
    publishers = range(load.n_publishers)
    wanted = Belief(dict.fromkeys(publishers, load.residencies), dict.fromkeys(publishers, load.probe_blocks))
    for what in ("residencies", "overlap"):
        got, want = getattr(belief, what), getattr(wanted, what)
        wrong = {number: got.get(number, 0) for number in publishers if got.get(number, 0) != want[number]}
        if wrong:
            number, blocks = next(iter(wrong.items()))
            raise SystemExit(
                f"{name}, {load}: {what} of {len(wrong)} publishers are wrong;"
                f" publisher {number} has {blocks} blocks, want {want[number]}"
            )


@contextlib.contextmanager
def child(body: Callable[..., None], *arguments: object) -> Generator[Connection]:
    """A fresh process that runs `body(pipe, *arguments)`; yields our end of the pipe."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=body, args=(theirs, *arguments), daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours
        process.join(TIMEOUT_S)
    finally:
        process.kill()
        process.join()
        ours.close()


def receive(pipe: Connection) -> Any:  # noqa: ANN401 - pipes carry what the child sends
    """What the child sends next.

    Raises:
        SystemExit: it died or is silent.
    """
    if pipe.poll(2 * TIMEOUT_S):
        with contextlib.suppress(EOFError):
            return pipe.recv()
    raise SystemExit("a process of the benchmark died or hangs; its own message is above")


def table(rows: list[tuple[Load, Rates]], consumers: list[str]) -> Table:
    """Rates, and how many times Dynamo's each of ours is."""
    times = " (times Dynamo's)" if DYNAMO in consumers else ""
    shown = Table(title=f"Million block events a CPU second, ZMQ bytes to index{times}")
    for heading in ("mix", "publishers", "events", *consumers):
        shown.add_column(heading, justify="left" if heading == "mix" else "right")
    for load, rates in rows:
        base = rates.get(DYNAMO)
        cells = [
            f"{rates[name]:.3f}" + (f" ({rates[name] / base:.2f}x)" if base and name != DYNAMO else "")
            for name in consumers
        ]
        shown.add_row(load.mix, str(load.n_publishers), str(load.n_block_events), *cells)
    return shown


def machine() -> str:
    """Processor, interpreter and versions, for people."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    dynamo = dynamo_version()
    versions = f"Python {platform.python_version()}, kvatlas {metadata.version('kvatlas')}" + (
        f", ai-dynamo-runtime {dynamo} with {DYNAMO_THREADS} indexer threads" if dynamo else ""
    )
    return f"{os.cpu_count()} x {names[0] if names else platform.machine()}, {versions}."


if __name__ == "__main__":
    main()
