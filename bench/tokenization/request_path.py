"""Time from a request's bytes to its block keys, beside a pipeline that encodes every prompt whole.

Use: python -m bench.request_path [--rounds 20] [--sizes 1000 8000 ...]

Five conversations that nobody has seen go on side by side: their first requests, one more turn of about 500 tokens each, and
these requests again; the same for plain completions that grow at their end. Then the same bytes are encoded whole, before
the next five, so that both meet the same hour of the machine. Latencies are those of an otherwise idle event loop, CPU time is that of the
whole process. `bench.request_server` drives a running server.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from kvatlas.api.tokenization.encoding_pool import EncodingPool
from kvatlas.api.tokenization.model import ChatPrompt, TextPrompt
from kvatlas.api.tokenization.pipeline import PromptPipeline
from kvatlas.api.tokenization.request import parse_body
from kvatlas.api.tokenization.tokenizer import ModelTokenizer, load_tokenizer
from kvatlas.indexer.factory import index_core

from ..common.conversations import (
    MODEL,
    TURN_TOKENS,
    chat_body,
    completion_body,
    conversation,
    model_folder,
    next_turn,
    text,
)  # fmt: skip

BLOCK_SIZE = 16
SIZES = (1_000, 8_000, 30_000, 100_000, 240_000)
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
Step = Literal["first sight", "next turn", "repeat"]
SIDE_BY_SIDE = 5
STEPS: tuple[Step, ...] = ("first sight", "next turn", "repeat")


@dataclass
class Series:
    """Measurements of one kind of request, in milliseconds."""

    latencies: list[float] = field(default_factory=list[float])
    cpu: list[float] = field(default_factory=list[float])

    def row(self) -> str:
        """p50, p99 and mean CPU time."""
        ordered = sorted(self.latencies)
        p99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
        return f"{statistics.median(ordered):10.2f}{p99:9.2f}{statistics.mean(self.cpu):9.2f}"


class Stopwatch:
    """Adds latency and CPU time of what runs inside to a series."""

    def __init__(self, series: Series) -> None:
        self._series = series

    def __enter__(self) -> None:
        self._begin, self._cpu = time.perf_counter(), time.process_time()

    def __exit__(self, *_: object) -> None:
        self._series.latencies.append((time.perf_counter() - self._begin) * 1e3)
        self._series.cpu.append((time.process_time() - self._cpu) * 1e3)


def requests(kind: str, n_tokens: int, number: int) -> Iterator[tuple[Step, str, bytes]]:
    """Step, path and body of one round."""
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
    """The prompt's ids, rendered and encoded from scratch."""
    prompt = parse_body(path, body).prompt
    if isinstance(prompt, ChatPrompt) and tokenizer.chat is not None:
        prompt = tokenizer.chat.render(prompt)
    if not isinstance(prompt, TextPrompt):
        raise SystemExit("the request has no prompt")
    return tokenizer.encode(prompt.text, add_special_tokens=prompt.add_special_tokens)


async def bench_in_process(sizes: list[int], rounds: int) -> None:
    """Prints one row a size and step."""
    tokenizer = load_tokenizer(model_folder(), cache_bytes=2**30)
    pool = EncodingPool(timeout_s=60)
    pipeline = PromptPipeline(tokenizer, model_names=(MODEL,), pool=pool)
    make_keys = index_core(None).prefix_keys
    print(f"{'ms':34}{'p50':>10}{'p99':>9}{'CPU':>9}   whole:{'p50':>8}{'p99':>9}{'CPU':>9}   ratio")
    numbers = iter(range(1, 1_000_000))
    for kind in ("chat", "completion"):
        for n_tokens in sizes:
            series = {step: (Series(), Series()) for step in STEPS}
            seen = 0
            for _ in range(rounds // SIDE_BY_SIDE):
                talks = [list(requests(kind, n_tokens, next(numbers))) for _ in range(SIDE_BY_SIDE)]
                asked = [request for step in zip(*talks, strict=True) for request in step]
                found: list[array[int] | None] = []
                for step, path, body in asked:
                    with Stopwatch(series[step][0]):
                        prompt = await pipeline.prompt(path, body)
                        keys = make_keys(prompt.tokens or array("I"), BLOCK_SIZE, seed=0)
                    found.append(prompt.tokens)
                    seen = len(keys) * BLOCK_SIZE
                for (step, path, body), ours in zip(asked, found, strict=True):
                    with Stopwatch(series[step][1]):
                        tokens = whole(tokenizer, path, body)
                        make_keys(tokens, BLOCK_SIZE, seed=0)
                    if ours != tokens:
                        raise SystemExit(f"{kind} of {n_tokens} tokens, {step}: the ids differ")
            for step, (kvatlas, other) in series.items():
                ratio = statistics.median(other.latencies) / statistics.median(kvatlas.latencies)
                print(f"{kind:12}{seen:9} {step:12}{kvatlas.row()}        {other.row()}{ratio:8.1f}")
    pool.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    arguments = parser.parse_args()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # as the server has it
    asyncio.run(bench_in_process(arguments.sizes, arguments.rounds))


if __name__ == "__main__":
    main()
