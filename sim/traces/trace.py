"""Requests to replay: when they come, how long they are, and which blocks they share. No text, no tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request.

    Attributes:
        at_s: seconds from the begin of the trace; of one with `after`, from the end of that request.
        n_prompt: prompt tokens, at least one.
        n_output: tokens to generate, at least one.
        ids: block ids, from the prompt's first block on: equal ids at equal places behind equal ids are equal content.
            They cover the prompt, its last partial block included; further ones are of the generated blocks. Generated
            blocks without an id are content that never comes again.
        session: what requests of one conversation have in common.
        after: number of the request in the trace that must have ended before, None for none.
    """

    at_s: float
    n_prompt: int
    n_output: int
    ids: tuple[int, ...]
    session: str = ""
    after: int | None = None

    @property
    def n_tokens(self) -> int:
        """Tokens of prompt and output."""
        return self.n_prompt + self.n_output


@dataclass(frozen=True, slots=True)
class Assumed:
    """What a trace does not say: of `n_requests` the output is not known, and taken to be `n_output` tokens."""

    n_requests: int
    n_output: int


@dataclass(frozen=True, slots=True)
class Trace:
    """A workload.

    Attributes:
        name: for reports.
        block_size: tokens a block id stands for.
        requests: in the order of their arrival; those with `after` stand behind the request they wait for.
        concurrency: requests under way at once, the next starting when one ends; None: requests come when they come.
        assumed: of requests whose output is not known; None where all are.
    """

    name: str
    block_size: int
    requests: Sequence[TraceRequest]
    concurrency: int | None = None
    assumed: Assumed | None = None

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens in all."""
        return sum(request.n_prompt for request in self.requests)

    def clock_grain_s(self) -> float:
        """Smallest time between two arrivals at different times, where several come at the same; else 0.

        A recorder with a coarse clock writes bursts that never were; a random delay below its grain undoes them.
        """
        times = sorted(request.at_s for request in self.requests if request.after is None)
        gaps = [later - earlier for earlier, later in pairwise(times)]
        if self.concurrency is not None or sum(not gap for gap in gaps) < len(times) / 2:
            return 0.0
        return min((gap for gap in gaps if gap), default=0.0)
