"""What a scorer sees: endpoints, their load, and how much of the request each holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from ..indexer.match import PrefixMatch


@dataclass(frozen=True, slots=True)
class Load:
    """Load of one endpoint as its own `/metrics` told it.

    Attributes:
        waiting: requests queued in the engine.
        running: requests being served.
        kv_utilization: part of the GPU blocks that running requests hold, 0 to 1.
        updated_at: monotonic seconds of the scrape.
    """

    waiting: int
    running: int
    kv_utilization: float
    updated_at: float

    def age_s(self, now: float) -> float:
        """Seconds since the scrape, never negative."""
        return max(0.0, now - self.updated_at)


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """One endpoint that may take the request; a msgspec struct for the same reason as `Rating`.

    Attributes:
        name: stable name from configuration or discovery.
        address: `host:port` that serves requests.
        labels: labels from configuration or discovery.
        load: last known load, or None when it was never read or is too old to believe.
        prefix: what the endpoint holds of the request, or None when the request has no block keys.
        credit: trust in the endpoint's prefix, 0 to 1; multiplies prefix scores.
    """

    name: str
    address: str
    labels: Mapping[str, str] = {}
    load: Load | None = None
    prefix: PrefixMatch | None = None
    credit: float = 1.0


@dataclass(frozen=True, slots=True)
class RequestView:
    """What scorers may know about the request.

    Attributes:
        model: model name as asked for.
        now: monotonic seconds.
        n_tokens: prompt tokens, 0 when the prompt was not tokenized.
    """

    model: str
    now: float
    n_tokens: int = 0


class Rating(msgspec.Struct, frozen=True, gc=False):
    """One scorer's view of one candidate.

    A msgspec struct, since one is made for every scorer and candidate of a request: a tenth of a frozen dataclass's cost.

    Attributes:
        raw: the input the score was made from, in the scorer's own unit; None when unknown.
        score: 0 (worst) to 1 (best).
        age_s: age of the input in seconds, None where age has no meaning.
    """

    raw: float | None
    score: float
    age_s: float | None = None


Ratings = Sequence[Rating]
"""One rating a candidate, in the candidates' order."""
