"""Bodies and answers of REST, as OpenAPI shows them."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    WrapValidator,
)
from pydantic.alias_generators import to_camel

from ...tokenization.requests.numbers import NumberFields
from .numbers import checked_hashes, checked_token_ids
from .session_models import SessionTokens

TokenId = Annotated[int, Field(ge=0, lt=2**32)]
Hash = Annotated[int, Field(ge=-(2**63), lt=2**64, description="64-bit hash, signed or unsigned")]
# Lists in JSON, and arrays once they are checked.
TokenIds = Annotated[list[TokenId], Field(fail_fast=True), WrapValidator(checked_token_ids)]
Hashes = Annotated[list[Hash], Field(fail_fast=True), WrapValidator(checked_hashes)]


def _unicode(text: str) -> str:
    """Refuse lone surrogates, which JSON escapes can write and UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("not valid Unicode: a surrogate stands alone") from None
    return text


Text = Annotated[str, AfterValidator(_unicode)]
Name = Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f\x7f]+$")]
MaybeName = Annotated[Name | None, BeforeValidator(lambda given: given if given != "" else None)]
"""A name; an empty one means none, as the standard contract has it."""
InstanceId = Annotated[int, Strict(), Field(ge=-(2**63), lt=2**64)] | Name
Address = Annotated[str, Field(max_length=512)]
Rank = Annotated[int, Field(ge=0, lt=1024)]
BlockSize = Annotated[int, Field(ge=1, lt=2**32)]
ListenerStatus = Literal["failed", "pending", "active", "paused"]
_MODEL_NAMES = AliasChoices("model", "model_name", "modelname")

MISSING_REPLICAS = "with several replicas: those that did not answer in time, and are not counted in"


class Own(BaseModel):
    """Base of kvatlas' own bodies: camelCase, unknown fields refused."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid")


class Standard(BaseModel):
    """Base of the standard contract's bodies: fields as specified, further ones ignored."""

    model_config = ConfigDict(extra="ignore")


class QueryRequest(Standard):
    """Body of `/query`."""

    numbers: ClassVar[NumberFields] = NumberFields(narrow=("token_ids",))

    token_ids: TokenIds = Field(description="token ids of the whole prompt")
    model: Text | None = Field(
        None,
        description="only instances of this model, or the adapter's name; absent: all",
        validation_alias=_MODEL_NAMES,
    )
    lora_name: Text | None = Field(None, description="adapter the prompt is for")
    cache_salt: Text | None = Field(None, description="cache salt of the request")
    tenant_id: Text | None = Field(None, description="only this tenant; absent: all")
    instance_id: InstanceId | None = Field(None, description="only this instance; absent: all")
    block_size: BlockSize | None = Field(None, description="ignored: each instance is matched at its own")
    sessions: bool = Field(
        False, description="kvatlas: also return the sessions whose requests stored the blocks"
    )


class QueryByHashRequest(Standard):
    """Body of `/query_by_hash`: either chained hashes or local ones."""

    numbers: ClassVar[NumberFields] = NumberFields(wide=("seq_hashes", "block_hash", "block_hashes"))

    seq_hashes: Hashes | None = Field(
        None,
        description="chained block keys; `block_hash` in earlier drafts of the contract",
        validation_alias=AliasChoices("seq_hashes", "block_hash"),
    )
    block_hashes: Hashes | None = Field(None, description="un-chained local hashes, chained here")
    block_size: BlockSize | None = Field(
        None, description="block size they were made with; absent: every known one"
    )
    model: Text | None = Field(
        None, description="only instances of this model; absent: all", validation_alias=_MODEL_NAMES
    )
    tenant_id: Text | None = Field(None, description="only this tenant; absent: all")
    instance_id: InstanceId | None = Field(None, description="only this instance; absent: all")


class InstanceMatch(Standard):
    """Tokens of a prompt that one instance holds."""

    longest_matched: int = Field(description="tokens the engine would reuse")
    GPU: int = Field(description="gap-free tokens in GPU memory")
    CPU: int = Field(description="gap-free tokens in CPU memory")
    DISK: int = Field(description="gap-free tokens in storage")
    DP: dict[str, int] = Field(description="usable tokens of each data-parallel rank")
    sessions: list[SessionTokens] | None = Field(
        None,
        description="only with `sessions`: sessions that stored the blocks in GPU memory, as far as events name them",
    )


class RegisterRequest(Standard):
    """Body of `/register`."""

    instance_id: InstanceId = Field(description="the instance, unique within its tenant")
    endpoint: Address = Field(description="ZMQ PUB address of its events, `tcp://HOST:PORT`")
    replay_endpoint: Address | None = Field(None, description="ZMQ ROUTER address of its replay")
    type: MaybeName = Field(
        None,
        description="kind of publisher; `Mooncake`: a store, whose shared tiers are those of the fleet that serves its model",
    )
    model: Name = Field(description="model it serves", validation_alias=_MODEL_NAMES)
    lora_name: MaybeName = Field(
        None, description="shown, not used: events name the adapter of each block themselves"
    )
    tenant_id: Name = Field("default", description="tenant of the instance")
    block_size: BlockSize = Field(description="tokens a block; the index goes by what the events show")
    dp_rank: Rank = Field(0, description="data-parallel rank; each is registered by itself")
    additional_salt: MaybeName = Field(
        None,
        description="`cache_salt` of queries that mean this instance's blocks, beside queries without one",
        validation_alias=AliasChoices("additionalsalt", "additional_salt"),
    )


class Registered(Standard):
    """Answer of `/register`."""

    status: str = Field(description="`registered successfully`")
    instance_id: InstanceId


class UnregisterRequest(Standard):
    """Body of `/unregister`."""

    instance_id: InstanceId
    tenant_id: Name = "default"
    dp_rank: Rank | None = Field(None, description="only this rank; absent: all")


class Unregistered(Standard):
    """Answer of `/unregister`."""

    status: str = Field(description="`unregistered successfully`")
    removed_instances: list[str] = Field(description="`INSTANCE|TENANT|RANK` of every rank removed")


class Listener(Standard):
    """State of the event stream of one rank."""

    endpoint: str
    replay_endpoint: str | None
    status: ListenerStatus = Field(
        description="pending: nothing heard; failed: the connection is lost; active: else"
    )
    trust: str = Field(description="live, replaying, partial, stale or dark")


class Worker(Standard):
    """One instance, configured or registered."""

    instance_id: InstanceId
    tenant_id: str
    source: Literal["zmq"] = "zmq"
    status: ListenerStatus = Field(description="the worst listener's; paused: it has none")
    registered: bool = Field(description="whether it came by `/register`; else it is configured")
    type: str | None
    model_name: str | None = Field(
        description="null for configured endpoints: they serve the configured model"
    )
    lora_name: Text | None
    block_size: int | None = Field(
        description="as events show it, before them as /metrics tells it or as registered"
    )
    endpoints: dict[str, str] = Field(description="rank -> ZMQ PUB address")
    listeners: dict[str, Listener] = Field(description="by rank")


class ScoreRequest(Own):
    """Body of `/v1/score`: one of `prompt`, `messages`, `token_ids`, `keys`."""

    model_config = ConfigDict(alias_generator=None, extra="forbid")
    numbers: ClassVar[NumberFields] = NumberFields(narrow=("token_ids",), wide=("keys",))

    model: Text = Field("", description="model name, or the name of a LoRA adapter")
    prompt: Text | None = Field(None, description="text, tokenized as a completion prompt")
    messages: Annotated[list[dict[str, Any]], Field(fail_fast=True)] | None = Field(
        None, description="chat messages, rendered and tokenized"
    )
    token_ids: TokenIds | None = None
    keys: Hashes | None = Field(
        None, description="chained block keys; needs block_size when several are known"
    )
    block_size: BlockSize | None = None
    cache_salt: Text | None = None


class LoadOut(Own):
    """Load by the endpoint's own metrics."""

    waiting: int
    running: int
    kv_utilization: float
    in_flight_requests: int = Field(
        description="requests sent there by this process and its sibling workers that have not ended"
    )
    in_flight_tokens: int = Field(description="their uncached prompt tokens, until the answer begins")
    age_seconds: float


class ObservedCapacityOut(Own):
    """Capacity of a tier as its events show it."""

    blocks: int
    error: float = Field(description="part by which that may be off")
    samples: int = Field(
        description="evictions or audited requests that this rests on, of the rank with fewest"
    )
    basis: Literal["evictions", "audit"] = Field(
        description="what it held whenever its engine evicted, or what its engine reused of what was expected"
    )


class TierOut(Own):
    """One tier of one endpoint."""

    name: str
    residencies: int
    capacity: int | None = Field(description="its bound, ranks together; null for none")
    configured_capacity: int | Literal["auto", "unlimited"] = Field(
        description="blocks a rank, as configured"
    )
    capacity_summary: str = Field(description="what is configured beside what is known, for people")
    observed_capacity: ObservedCapacityOut | None = Field(
        description="what it really holds, ranks together; null while too few evictions were seen, and where the bound hides it"
    )
    chunk_blocks: int | None
    source: str | None = Field(description="events, inferred or routing; null while there is no evidence")
    dark: bool = Field(description="the engine uses the tier without telling what it holds there")
    advice: str | None = Field(description="what makes a dark tier known")


class PublisherOut(Own):
    """One rank's event stream."""

    rank: int
    events: str | None
    replay: str | None
    trust: str
    epoch: int
    last_seq: int | None
    lag_seconds: float | None = Field(description="seconds since the last batch was applied")
    block_size: int | None = Field(description="as events show it, before them as /metrics tells it")
    counters: dict[str, int]


class ScrapeOut(Own):
    """State of scraping the endpoint's metrics."""

    url: str
    engine: str | None = Field(description="whose series it has; null until an answer showed it")
    interval_seconds: float = Field(description="time between two reads: idle endpoints are read less often")
    failing: bool
    last_error: str | None


class EndpointOut(Own):
    """One endpoint."""

    name: str
    address: str | None = Field(description="where it serves requests; null for registered instances")
    tenant: str
    instance: str = Field(description="its id in the standard contract")
    labels: dict[str, str]
    load: LoadOut | None
    scrape: ScrapeOut | None
    tiers: list[TierOut]
    publishers: list[PublisherOut]


class EndpointsOut(Own):
    """Answer of `/v1/endpoints`."""

    endpoints: list[EndpointOut] = Field(description="by name")
    next_cursor: str | None = Field(description="`cursor` of the next page; null when there is none")


class IndexTierOut(Own):
    """One tier of the index, over all endpoints."""

    name: str
    media: list[str] = Field(description="the engines' words for it")
    scope: Literal["server", "shared"]
    residencies: int = Field(
        description="blocks held, once for each endpoint that holds them; shared ones once"
    )
    endpoints: int = Field(description="endpoints that hold something there")


class IndexOut(Own):
    """Answer of `/v1/index`."""

    core: str = Field(description="implementation that runs: native (C++) or reference (Python)")
    hash_seed: int = Field(description="seed of the block keys")
    block_sizes: list[int] = Field(description="tokens a block, of every size that an endpoint has")
    keys: int = Field(description="distinct block keys, unswept ones included")
    residencies: int = Field(
        description="blocks held, once a holder: a tier and group of a rank, or a shared tier"
    )
    unswept_keys: int = Field(description="keys of removed endpoints whose memory is not free yet")
    bytes: int = Field(description="memory of the tables")
    tiers: list[IndexTierOut] = Field(description="fastest first, media that nobody configured last")


class ResetOut(Own):
    """Answer of `POST /v1/endpoints/{name}/reset`."""

    endpoint: str
    forgotten: int = Field(description="blocks it held until now")
    replaying: list[int] = Field(description="ranks whose publisher is asked for its history")
    missing_replicas: list[str] = Field(
        default=[], description="replicas that did not say that they forgot it too"
    )


class ConfigOut(Own):
    """Answer of `/v1/config`."""

    generation: int = Field(description="1 at the start, one more with each change")
    files: list[str] = Field(description="where it is from, and loaded from again when they change")
    refused: dict[str, str] = Field(description="file -> why its present content is not in force")
    config: Any = Field(description="as a file writes it, with what endpoints.file lists")


class ReplicaGenerationOut(Own):
    """The configuration of one replica."""

    name: str
    generation: int = Field(description="of the configuration in force there")
    problem: str | None = Field(default=None, description="why the change is not in force there yet")


class ChangedOut(Own):
    """Answer of a change of the configuration in force."""

    generation: int = Field(description="of the changed configuration")
    changes: list[str] = Field(description="`weights.queue: 2 -> 3`; empty when nothing differs")
    replicas: list[ReplicaGenerationOut] = Field(
        default=[], description="with several replicas: what is in force on each, this one first"
    )


class WeightsOut(ChangedOut):
    """Answer of `PUT /v1/weights`."""

    weights: dict[str, float]


class ReadyOut(Own):
    """Answer of `/healthz` and `/readyz`."""

    status: str


class ErrorBody(Own):
    """Body of an error."""

    code: str
    message: str
    detail: Any = None


class ErrorOut(Own):
    """Every error."""

    error: ErrorBody
