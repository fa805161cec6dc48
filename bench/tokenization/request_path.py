"""From a request's bytes to its block keys, beside a pipeline that encodes every prompt whole.

Five conversations that nobody has seen go on side by side: their first requests, one more turn of about 500 tokens each, and
these requests again; the same for plain completions that grow at their end. Then the same bytes are encoded whole, before
the next five, so that both meet the same hour of the machine. Latencies are those of an otherwise idle event loop, CPU time is
that of the whole process. Ends with status 1 if the ids differ. `request-server` measures a running server.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from kvatlas.indexer.factory import index_core
from kvatlas.tokenization.encoding.encoding_pool import EncodingPool
from kvatlas.tokenization.encoding.tokenizer import ModelTokenizer, load_tokenizer
from kvatlas.tokenization.model import ChatPrompt, TextPrompt
from kvatlas.tokenization.pipeline import PromptPipeline
from kvatlas.tokenization.requests.request import parse_body

from ..common.benchmark import Benchmark
from ..common.conversations import (
    MODEL,
    TURN_TOKENS,
    chat_body,
    completion_body,
    conversation,
    model_folder,
    next_turn,
    text,
)
from ..common.tables import Cell, Table

BLOCK_SIZE = 16
SIZES = (1_000, 8_000, 30_000, 100_000, 240_000)
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
Step = Literal["first sight", "next turn", "repeat"]
SIDE_BY_SIDE = 5
STEPS: tuple[Step, ...] = ("first sight", "next turn", "repeat")
KINDS = ("chat", "completion")


@dataclass
class Series:
    """Measurements of one kind of request, in milliseconds."""

    latencies: list[float] = field(default_factory=list[float])
    cpu: list[float] = field(default_factory=list[float])

    @property
    def latency(self) -> tuple[float, float]:
        """Median and 99th percentile."""
        ordered = sorted(self.latencies)
        return statistics.median(ordered), ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]


@dataclass
class Case:
    """One kind and size of request.

    Attributes:
        kind: chat or completion.
        n_tokens: of the prompt, about.
        seen: tokens in full blocks of the last prompt.
        ours: of kvatlas, by step.
        whole: of the pipeline that encodes every prompt whole, by step.
    """

    kind: str
    n_tokens: int
    seen: int = 0
    ours: dict[Step, Series] = field(default_factory=lambda: {step: Series() for step in STEPS})
    whole: dict[Step, Series] = field(default_factory=lambda: {step: Series() for step in STEPS})

    @property
    def row(self) -> tuple[Cell, ...]:
        """One row of the table."""
        whole = self.whole["next turn"]
        cpu = [statistics.mean(series.cpu) for series in (self.ours["next turn"], whole)]
        return (self.seen, *(self.ours[step].latency for step in STEPS), whole.latency, *cpu)


class Stopwatch:
    """A context that adds latency and CPU time of what runs inside to a series."""

    def __init__(self, series: Series) -> None:
        self._series = series

    def __enter__(self) -> None:
        self._begin, self._cpu = time.perf_counter(), time.process_time()

    def __exit__(self, *_: object) -> None:
        self._series.latencies.append((time.perf_counter() - self._begin) * 1e3)
        self._series.cpu.append((time.process_time() - self._cpu) * 1e3)


def requests(kind: str, n_tokens: int, number: int) -> Iterator[tuple[Step, str, bytes]]:
    """Yield step, path and body of one round."""
    if kind == "chat":
        messages = conversation(n_tokens - 2 * TURN_TOKENS, number)
        bodies = [chat_body(messages), chat_body(messages + next_turn(number, 99_991))]
        path = CHAT
    else:
        prompt = text(n_tokens, number)
        bodies = [completion_body(prompt[: -4 * 2 * TURN_TOKENS]), completion_body(prompt)]
        path = COMPLETION
    yield "first sight", path, bodies[0]
    yield "next turn", path, bodies[1]
    yield "repeat", path, bodies[1]


def whole(tokenizer: ModelTokenizer, path: str, body: bytes) -> array[int]:
    """Return the prompt's ids, rendered and encoded from scratch."""
    prompt = parse_body(path, body).prompt
    if isinstance(prompt, ChatPrompt) and tokenizer.chat is not None:
        prompt = tokenizer.chat.render(prompt)
    if not isinstance(prompt, TextPrompt):
        raise SystemExit("the request has no prompt")
    return tokenizer.encode(prompt.text, add_special_tokens=prompt.add_special_tokens)


class Bench:
    """The measured pipeline, and the tokenizer that it is compared with."""

    def __init__(self) -> None:
        self._tokenizer = load_tokenizer(model_folder(), cache_bytes=2**30)
        self._pool = EncodingPool(timeout_s=60)
        self._pipeline = PromptPipeline(self._tokenizer, model_names=(MODEL,), pool=self._pool)
        self._make_keys = index_core(None).prefix_keys
        self._numbers = iter(range(1, 1_000_000))

    def close(self) -> None:
        """End the threads."""
        self._pool.close()

    async def measure(self, case: Case) -> None:
        """Add one round of conversations side by side.

        Raises:
            SystemExit: the ids differ.
        """
        chats = [list(requests(case.kind, case.n_tokens, next(self._numbers))) for _ in range(SIDE_BY_SIDE)]
        sent = [request for step in zip(*chats, strict=True) for request in step]
        found: list[array[int] | None] = []
        for step, path, body in sent:
            with Stopwatch(case.ours[step]):
                prompt = await self._pipeline.prompt(path, body)
                keys = self._make_keys(prompt.tokens or array("I"), BLOCK_SIZE, seed=0)
            found.append(prompt.tokens)
            case.seen = len(keys) * BLOCK_SIZE
        for (step, path, body), ours in zip(sent, found, strict=True):
            with Stopwatch(case.whole[step]):
                tokens = whole(self._tokenizer, path, body)
                self._make_keys(tokens, BLOCK_SIZE, seed=0)
            if ours != tokens:
                raise SystemExit(f"{case.kind} of {case.n_tokens} tokens, {step}: the ids differ")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--rounds", type=int, default=20, help="conversations per size (20)")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="tokens of the prompts")


def run(options: argparse.Namespace) -> list[Table]:
    """Measure chats and completions of every size."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # as the server has it
    cases = [Case(kind, n_tokens) for kind in KINDS for n_tokens in options.sizes]
    asyncio.run(_measure_all(cases, options.rounds // SIDE_BY_SIDE))
    return [_table(kind, [case for case in cases if case.kind == kind]) for kind in KINDS]


async def _measure_all(cases: Sequence[Case], rounds: int) -> None:
    bench = Bench()
    for case in cases:
        for _ in range(rounds):
            await bench.measure(case)
    bench.close()


def _table(kind: str, cases: Sequence[Case]) -> Table:
    headings = ("tokens", *STEPS, "whole", "CPU of next turn", "CPU of whole")
    rows = tuple(case.row for case in cases)
    return Table(name=kind, title=f"{kind}, milliseconds: median (p99)", headings=headings, rows=rows)


BENCHMARK = Benchmark(name="request-path", about=__doc__, add_options=add_options, run=run)
