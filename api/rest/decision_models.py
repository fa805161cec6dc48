"""Answers about decisions."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from .models import MISSING_REPLICAS, Own

VERDICTS = "tokenizer, good, other_rank, stale, event_lag, too_early, evicted or unknown"


class RunOut(Own):
    """A run of consecutive blocks in one tier."""

    tier: str
    blocks: int


class PrefixOut(Own):
    """The part of the prompt that an endpoint holds."""

    rank: int = Field(description="the data-parallel rank that holds most, which the figures are of")
    usable_tokens: int = Field(description="tokens the engine would reuse")
    predicted_tokens: int = Field(
        description="of the fastest tier's, tokens that the endpoint is about to compute for a request just sent there"
    )
    tier_tokens: dict[str, int] = Field(description="gap-free tokens from the first on in each tier alone")
    runs: list[RunOut] = Field(description="the union of all tiers, each block in its fastest")


class SeenLoadOut(Own):
    """Load by the endpoint's own metrics before the decision."""

    waiting: int
    running: int
    kv_utilization: float
    age_seconds: float


class InFlightOut(Own):
    """Requests that this process had sent to the endpoint and not seen end."""

    requests: int
    tokens: int = Field(description="their uncached prompt tokens, until the answer begins")


class ScoreOut(Own):
    """One scorer's term: `product = weight * score`."""

    name: str
    type: str
    raw: float | None = Field(description="the input, in the scorer's own unit; null when unknown")
    score: float
    weight: float
    product: float
    age_seconds: float | None = Field(description="age of the input; null where it has none")
    parts_ms: dict[str, float] | None = Field(
        default=None, description="milliseconds that add up to the input, by name; null if it has no parts"
    )


class PredictedOut(Own):
    """Times that a `predicted-latency-producer` expected; headroom is the request's objective less the prediction."""

    ttft_ms: float = Field(description="milliseconds to the first token")
    tpot_ms: float | None = Field(description="milliseconds per output token; null when it has no part")
    ttft_headroom_ms: float
    tpot_headroom_ms: float = Field(description="0 where the time per output token has no part")


class ScoredEndpointOut(Own):
    """One candidate."""

    name: str
    address: str
    total: float
    filtered_by: str | None = Field(
        description="the filter that dropped it, or the admitter that refused the request; null when all kept it"
    )
    filter_reason: str | None = Field(description="why, in words")
    filters_passed: list[str] = Field(description="the filters that kept it, in the order in which they ran")
    trust: str = Field(description="trust in the events the prefix is known from")
    credit: float = Field(description="what that trust makes of prefix scores, 0 to 1")
    load: SeenLoadOut | None = Field(description="null when unknown or too old to believe")
    in_flight: InFlightOut
    prefix: PrefixOut | None
    predicted: PredictedOut | None = Field(description="null without a predictor, or before it has learned")
    scores: list[ScoreOut]


class FaultOut(Own):
    """A plugin whose result had to be repaired."""

    name: str
    reason: str
    detail: str


class CounterfactualOut(Own):
    """The smallest change of one weight that takes the highest total from the picked endpoint."""

    scorer: str
    weight: float
    new_weight: float
    picks: list[str] = Field(description="the endpoints that then have the highest total")


class StageOut(Own):
    """A stage of the request that another endpoint does than the one that answers."""

    name: str = Field(description="prefill or encode")
    profile: str = Field(description="the profile that picked")
    picked: list[str] = Field(description="best first")
    blocks: int
    tie: bool = Field(description="whether chance decided the first place")
    picker: str = Field(description="type of the plugin that picked")
    faults: list[FaultOut]
    endpoints: list[ScoredEndpointOut]


class PlacementOptionOut(Own):
    """A placement that a handler compared with others, and its cost."""

    prefill: str | None = Field(description="computes the prompt; null if the endpoint that answers does")
    decode: str = Field(description="answers")
    total_ms: float = Field(description="its cost in milliseconds")
    terms_ms: dict[str, float] = Field(description="milliseconds of each part")


class PlacementOut(Own):
    """What a profile handler made of the request; the decision itself is that of the endpoint that answers."""

    kind: str = Field(description="such as prefill-decode; none if nobody was picked")
    profile: str = Field(description="the profile that picked the endpoint that answers")
    lacking: str | None = Field(
        description="the stage that the request needs and no endpoint can do; null if none is"
    )
    headers: dict[str, str] = Field(description="for the sidecar of the endpoint that answers")
    stages: list[StageOut]
    options: list[PlacementOptionOut] = Field(
        default=[],
        description="the placement, the best one of the other kind (alone or a pair), and the best other pair, "
        "if the handler compares costs; the chosen one first",
    )


class ScoreResponse(Own):
    """A decision with its reasons; answer of `/v1/score`."""

    model: str
    tokens: int
    tokens_estimated: bool = Field(
        default=False, description="whether `tokens` is an estimate, four bytes a token"
    )
    blocks: int
    picked: list[str] = Field(description="best first; empty when filters dropped every endpoint")
    tie: bool = Field(description="whether chance decided the first place")
    tied: list[str] = Field(description="endpoints that share the highest total")
    picker: str = Field(description="type of the plugin that picked")
    config_generation: int
    no_prefix_reason: str | None = Field(description="why there are no token ids; `tokens` is then estimated")
    cut_reason: str | None = Field(description="why only the first token ids are known")
    counterfactual: CounterfactualOut | None = Field(
        description="null where no change of one weight does it, or the picker does not go by totals"
    )
    faults: list[FaultOut]
    placement: PlacementOut | None = Field(
        default=None, description="null if the configuration has no profile handler"
    )
    endpoints: list[ScoredEndpointOut]


class AuditedOut(Own):
    """Expected reuse of the prompt beside the engine's own count."""

    verdict: str = Field(description=VERDICTS)
    tier: str | None = Field(description="where the expectation failed; null where it did not")
    expected_tokens: dict[str, int] = Field(description="by tier")
    reused_tokens: dict[str, int] = Field(description="by tier, laid out along it; `beyond`: not expected")
    error_tokens: int = Field(description="expected less reused")


class SloOut(Own):
    """Objectives that the client named."""

    ttft_ms: float | None = Field(description="longest acceptable milliseconds to the first token")
    tpot_ms: float | None = Field(description="longest acceptable milliseconds per output token")


class DecisionOut(ScoreResponse):
    """The decision on a request; answer of `/v1/decisions/{request_id}`."""

    request_id: str
    time: datetime
    traceparent: str = Field(description="W3C trace context of the request; empty without one")
    objective: str = Field(description="the request's objective; empty without one")
    priority: int = Field(description="of the objective")
    fairness_id: str = Field(description="whom the request counts for")
    slo: SloOut | None = Field(description="null when the client named no objective")
    audited: AuditedOut | None = Field(description="null until the engine has told what it reused")


class DecisionSummaryOut(Own):
    """One line of `/v1/decisions`."""

    request_id: str
    time: datetime
    model: str
    tokens: int
    tokens_estimated: bool = Field(default=False, description="whether `tokens` is an estimate")
    usable_tokens: int | None = Field(
        description="cached on the endpoint that computes the prompt; null without prefix"
    )
    picked: list[str]
    placement: str | None = Field(
        default=None, description="kind of placement; null if the configuration has no profile handler"
    )
    stages: dict[str, list[str]] = Field(
        default={}, description="stage done elsewhere -> endpoints that do it"
    )
    total: float | None = Field(description="of the picked endpoint; null when nobody was picked")
    tie: bool
    config_generation: int


class DecisionsOut(Own):
    """Answer of `/v1/decisions`."""

    decisions: list[DecisionSummaryOut] = Field(description="newest first")
    next_cursor: int | None = Field(description="`cursor` of the next page; null when there is none")
    missing_replicas: list[str] = Field(default=[], description=MISSING_REPLICAS)
