"""Requests to replay: arrival times, lengths, and shared blocks. There is no text, and there are no tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request.

    Attributes:
        at_s: seconds since the start of the trace; with `after`, since the end of that request.
        n_prompt: prompt tokens, at least one.
        n_output: tokens to generate, at least one.
        ids: block ids from the prompt's first block on. The same id at the same position after the same ids means the same
            content. They cover the prompt with its last partial block; further ids are those of generated blocks. The
            content of generated blocks without an id never recurs.
        session: equal for all requests of one conversation.
        after: number of the request in the trace that must end first; None if there is none.
        ttft_ms: longest time to the first token that its client accepts, in milliseconds; None if it names none.
        tpot_ms: the same per output token after the first.
        n_media: images, videos and audio in the prompt.
    """

    at_s: float
    n_prompt: int
    n_output: int
    ids: tuple[int, ...]
    session: str = ""
    after: int | None = None
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    n_media: int = 0

    @property
    def n_tokens(self) -> int:
        """Tokens of prompt and output."""
        return self.n_prompt + self.n_output


@dataclass(frozen=True, slots=True)
class Assumed:
    """Assumption for the `n_requests` requests without output length: their output has `n_output` tokens."""

    n_requests: int
    n_output: int


@dataclass(frozen=True, slots=True)
class Trace:
    """A workload.

    Attributes:
        name: for reports.
        block_size: tokens per block id.
        requests: in the order of arrival; requests with `after` come after the request for which they wait.
        concurrency: number of concurrent requests, the next starting when one ends; None if they arrive at their own times.
        assumed: assumption for requests without output length; None if all have one.
    """

    name: str
    block_size: int
    requests: Sequence[TraceRequest]
    concurrency: int | None = None
    assumed: Assumed | None = None

    @property
    def prompt_tokens(self) -> int:
        """Total number of prompt tokens."""
        return sum(request.n_prompt for request in self.requests)

    def clock_grain_s(self) -> float:
        """Return the resolution of a coarse clock: the smallest gap between arrivals, if most are simultaneous; else 0.

        A coarse clock records bursts that did not happen; a random delay below its resolution removes them.
        """
        times = sorted(request.at_s for request in self.requests if request.after is None)
        gaps = [later - earlier for earlier, later in pairwise(times)]
        if self.concurrency is not None or sum(not gap for gap in gaps) < len(times) / 2:
            return 0.0
        return min((gap for gap in gaps if gap), default=0.0)
