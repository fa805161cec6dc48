"""Objectives of the requests of a trace: the longest times that their clients accept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from .trace import Trace, TraceRequest


@dataclass(frozen=True, slots=True)
class Objectives:
    """Objectives of one kind of requests.

    Attributes:
        share: part of the conversations that are of this kind, relative to those of the others.
        ttft_ms: longest acceptable milliseconds to the first token, None for any.
        tpot_ms: longest acceptable milliseconds per output token after the first, None for any.
    """

    share: float
    ttft_ms: float | None = None
    tpot_ms: float | None = None


MIXED = (
    Objectives(0.4, ttft_ms=400.0, tpot_ms=35.0),
    Objectives(0.4, ttft_ms=1500.0, tpot_ms=70.0),
    Objectives(0.2),
)
"""People who wait for an answer, programs that need one soon, and work that nobody waits for. On two H100 with a model of
32 billion weights the first needs a server that is neither slow nor busy; a token takes 15 ms at least."""


def with_objectives(trace: Trace, kinds: Sequence[Objectives] = MIXED, *, seed: int = 1) -> Trace:
    """Return the trace with objectives; all requests of a conversation are of one kind. Cost: O(requests)."""
    shares = [kind.share for kind in kinds]
    found: dict[str, Objectives] = {}
    rng = Random(f"objectives {seed}")
    requests: list[TraceRequest] = []
    for request in trace.requests:
        kind = found.get(request.session)
        if kind is None or not request.session:
            kind = found[request.session] = rng.choices(kinds, shares)[0]
        requests.append(replace(request, ttft_ms=kind.ttft_ms, tpot_ms=kind.tpot_ms))
    return replace(trace, requests=requests)
