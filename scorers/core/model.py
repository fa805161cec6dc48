"""What a scorer sees: endpoints, their load, and how much of the request each holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from ...events.stream import Trust
from ...indexer.match import PrefixMatch


class Adapters(msgspec.Struct, frozen=True, gc=False):
    """LoRA adapters of one endpoint as its own `/metrics` told them.

    Attributes:
        active: adapters of running requests, by name.
        waiting: adapters of queued requests, by name.
        max_active: adapters that can be active at once.
    """

    active: frozenset[str]
    waiting: frozenset[str]
    max_active: int


class Load(msgspec.Struct, frozen=True, gc=False):
    """Load of one endpoint as its own `/metrics` told it.

    Attributes:
        waiting: requests queued in the engine.
        running: requests being served.
        kv_utilization: part of the GPU blocks that running requests hold, 0 to 1.
        updated_at: monotonic seconds of the scrape.
        adapters: LoRA adapters, None when the engine tells nothing of them.
    """

    waiting: int
    running: int
    kv_utilization: float
    updated_at: float
    adapters: Adapters | None = None

    def age_s(self, now: float) -> float:
        """Seconds since the scrape, never negative."""
        age_s = now - self.updated_at
        return (
            age_s if age_s > 0.0 else 0.0
        )  # a tenth of `max` and its arguments, for every scorer and candidate


class InFlightLoad(msgspec.Struct, frozen=True, gc=False):
    """What this process has sent to one endpoint and not yet seen end; known without scraping.

    Attributes:
        requests: requests whose answer has not ended.
        tokens: uncached prompt tokens of requests whose answer has not begun.
    """

    requests: int = 0
    tokens: int = 0


IDLE = InFlightLoad()


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """One endpoint that may take the request; a msgspec struct for the same reason as `Rating`.

    Attributes:
        name: stable name from configuration or discovery.
        address: `host:port` that serves requests.
        labels: labels from configuration or discovery.
        load: last known load, or None when it was never read or is too old to believe.
        prefix: what the endpoint holds of the request, or None when the request has no block keys.
        credit: trust in the endpoint's prefix, 0 to 1; multiplies prefix scores.
        in_flight: what was sent there and has not ended.
        trust: trust in the events that the prefix is known from.
    """

    name: str
    address: str
    labels: Mapping[str, str] = {}
    load: Load | None = None
    prefix: PrefixMatch | None = None
    credit: float = 1.0
    in_flight: InFlightLoad = IDLE
    trust: Trust = Trust.DARK

    def uncached_tokens(self, request: RequestView) -> int:
        """Prompt tokens the endpoint is expected to compute, 0 when the prompt was not tokenized."""
        cached = int(self.credit * self.prefix.usable_tokens) if self.prefix is not None else 0
        return max(0, request.n_tokens - cached)


class RequestView(msgspec.Struct, frozen=True, gc=False):
    """What scorers may know about the request.

    Attributes:
        model: model name as asked for.
        now: monotonic seconds.
        n_tokens: prompt tokens, 0 when the prompt was not tokenized.
        headers: lower-case name -> value; empty when the request came without HTTP.
    """

    model: str
    now: float
    n_tokens: int = 0
    headers: Mapping[str, str] = {}


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


UNRATED = Rating(raw=None, score=0.0)
"""Rating of what is not known, shared."""

Ratings = Sequence[Rating]
"""One rating a candidate, in the candidates' order."""
