"""Input of scorers: endpoints, their load, and their cached prefix of the request."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ...events.stream import Trust
from ...indexer.match import PrefixMatch
from ...indexer.prefix import Prefix


class Adapters(msgspec.Struct, frozen=True, gc=False):
    """LoRA adapters of one endpoint, from its `/metrics`.

    Attributes:
        active: adapters of running requests, by name.
        waiting: adapters of queued requests, by name.
        on_gpu: adapters on the GPU, with or without requests, as the engine reports them.
        in_memory: adapters in host memory alone, likewise.
        recent: if the engine reports neither: idle adapters that were active so lately that nothing displaced them since.
    """

    active: frozenset[str] = frozenset()
    waiting: frozenset[str] = frozenset()
    on_gpu: frozenset[str] = frozenset()
    in_memory: frozenset[str] = frozenset()
    recent: frozenset[str] = frozenset()


class Load(msgspec.Struct, frozen=True, gc=False):
    """Load of one endpoint, from its `/metrics`.

    Attributes:
        waiting: requests queued in the engine.
        running: requests being served.
        kv_utilization: part of the GPU blocks that running requests hold, 0 to 1.
        updated_at: monotonic seconds of the scrape.
        adapters: LoRA adapters, None if the engine does not report them.
        attributes: further series by attribute, NaN if the engine does not report it; None if none are configured.
        gpu_tokens: tokens for which the GPU blocks of all ranks have room, 0 if the engine does not report it.
        gpu_cached_tokens: tokens whose blocks are cached there by the index, which knows them at the time of the scrape.
    """

    waiting: int
    running: int
    kv_utilization: float
    updated_at: float
    adapters: Adapters | None = None
    attributes: Mapping[str, float] | None = None
    gpu_tokens: int = 0
    gpu_cached_tokens: int = 0

    def age_s(self, now: float) -> float:
        """Return the seconds since the scrape, never negative."""
        age_s = now - self.updated_at
        # `max` would cost ten times as much, for every scorer and candidate
        return age_s if age_s > 0.0 else 0.0


class InFlightLoad(msgspec.Struct, frozen=True, gc=False):
    """Requests that this process has sent to one endpoint and that have not ended; known without scraping.

    Attributes:
        requests: requests whose response has not ended.
        tokens: uncached prompt tokens of requests whose response has not begun.
    """

    requests: int = 0
    tokens: int = 0


IDLE = InFlightLoad()


PREFILL_SPEED = "prefillTokensPerSecond"
"""Attribute: uncached prompt tokens that an endpoint computes per second, as its engine publishes it."""


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """One endpoint that can take the request; a row of `Candidates` as an object.

    Attributes:
        name: stable name from configuration or discovery.
        address: `host:port` that serves requests.
        labels: labels from configuration or discovery.
        load: last known load, None if it was never scraped or is stale.
        prefix: cached prefix of the request on the endpoint, None if the request has no block keys.
        credit: trust in the endpoint's prefix, 0 to 1; multiplies prefix scores.
        in_flight: requests that were sent there and have not ended.
        trust: trust in the events from which the prefix is known.
        attributes: scraped attributes that are known, by name.
    """

    name: str
    address: str
    labels: Mapping[str, str] = {}
    load: Load | None = None
    prefix: PrefixMatch | None = None
    credit: float = 1.0
    in_flight: InFlightLoad = IDLE
    trust: Trust = Trust.DARK
    attributes: Mapping[str, float] = {}

    def uncached_tokens(self, request: RequestView) -> int:
        """Return the prompt tokens that the endpoint is expected to compute, 0 if nothing is known of the prompt."""
        cached = int(self.credit * self.prefix.usable_tokens) if self.prefix is not None else 0
        return max(0, request.n_tokens - cached)

    def computed_tokens(self, request: RequestView) -> int:
        """Return the same of all prompts of the request together; as much of each is taken to be cached as of the longest."""
        return round(self.uncached_tokens(request) * request.extent)


class BurstPlace(msgspec.Struct, frozen=True, gc=False):
    """The endpoint of a request that arrived together with others, and the blocks of its prompt."""

    endpoint: str
    n_blocks: int


class RequestView(msgspec.Struct, frozen=True, gc=False):
    """The part of a request that scorers see.

    Attributes:
        model: model name in the request.
        now: monotonic seconds.
        n_tokens: prompt tokens; 0 if nothing is known of the prompt.
        headers: lower-case name -> value; empty if the request did not come by HTTP.
        is_estimated: whether `n_tokens` is an estimate, because the prompt's token ids are missing or cut.
        output_tokens: estimated tokens of the response, 0 unless `inflight-load-producer` counts them as load.
        media: ids of the images, videos and audio in the prompt, each once; filled if a plugin `ReadsMedia`.
        burst: where `burst-prefix-cache-producer` assigns the request, None if it assigns it nowhere.
        priority: priority of its objective; a negative one may be shed.
        peer_labels: labels of the endpoint that does the other stage of the request, None if it has one stage.
        has_body: whether the client sent a body; without one there is no prompt.
        prefix: block keys of the prompt, None if they are unknown.
        is_streamed: whether the client wants a streamed response; true if that is unknown.
        extent: length of all prompts of the request together, as a multiple of that of the longest one, which all else is about.
    """

    model: str
    now: float
    n_tokens: int = 0
    headers: Mapping[str, str] = {}
    is_estimated: bool = False
    output_tokens: int = 0
    media: tuple[int, ...] = ()
    burst: BurstPlace | None = None
    priority: int = 0
    peer_labels: Mapping[str, str] | None = None
    has_body: bool = True
    prefix: Prefix | None = None
    is_streamed: bool = True
    extent: float = 1.0


class Rating(msgspec.Struct, frozen=True, gc=False):
    """One scorer's view of one candidate.

    Attributes:
        raw: input of the score, in the scorer's own unit; None if unknown.
        score: 0 (worst) to 1 (best).
        age_s: age of the input in seconds, None if age has no meaning.
    """

    raw: float | None
    score: float
    age_s: float | None = None
