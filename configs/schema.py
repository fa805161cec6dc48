"""The configuration file as typed data. Field names are the YAML keys in snake case; every key is optional."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from .approximate import ApproximateConfig, BlockSize
from .cluster import KubernetesConfig, LeaderElectionConfig
from .decisions import AuditConfig, DecisionsConfig, PredictionsConfig
from .disaggregation import DisaggregationConfig
from .estimate import EstimateConfig
from .listeners import ExtProcConfig, RestConfig, ServerConfig
from .lmcache import LmcacheConfig
from .observers import CapacityCurveConfig, RecorderConfig, ShadowConfig
from .paths import PathText
from .replicas import ReplicasConfig
from .request_handler import RequestHandlerConfig
from .scoring import ScoringConfig
from .scraping import MetricsScrapeConfig
from .section import BlockCount, ModelName, PolicyName, Port, Section, SignedWeight, Weight
from .tracing import TracingConfig
from .units import Duration


class ChatConfig(Section, frozen=True):
    """Chat rendering options of the engines; the defaults are those of vLLM."""

    renderer: Literal["auto", "template", "engine"] = "auto"
    """Renderer of chats: the template, or the engine's own code; auto: derived from the model's files."""
    template: PathText = ""
    """File with the template that engines use instead of the model's (`--chat-template`); empty: the model's."""
    content_format: Literal["auto", "string", "openai"] = "auto"
    """Format in which templates get message content (`--chat-template-content-format`)."""
    template_kwargs: dict[str, object] = {}
    """Default template variables, which a request can override (`--default-chat-template-kwargs`)."""
    exclude_tools_when_tool_choice_none: bool = False
    """Whether requests with `tool_choice: none` are rendered without tools (the flag of that name)."""
    trust_request_template: bool = False
    """Whether templates in requests are rendered (`--trust-request-chat-template`), in a separate process with limits."""


class RemoteTokenizerConfig(Section, frozen=True):
    """Engines that compute token ids which kvatlas itself cannot compute."""

    url: str = ""
    """Base URL of a server, `endpoints` for any endpoint that responds, or empty for none."""
    api: Literal["render", "tokenize"] = "render"
    """render: vLLM's /render paths (`--enable-scale-out`, or `vllm launch render`); tokenize: /tokenize, for fewer kinds of requests."""
    media: bool = False
    """Whether chats with images, audio or video are sent too; otherwise their prefix ends at the first such part."""
    timeout: Duration = Duration(0.3)
    """Longest wait for ids, including all attempts; after it the request is routed without prefix."""
    max_concurrent: Annotated[int, Meta(ge=1, le=1024)] = 16
    """Concurrent calls."""
    cache_mebibytes: Annotated[int, Meta(ge=0, le=65536)] = 64
    """Memory for responses, in MiB."""
    failures: Annotated[int, Meta(ge=1, le=1000)] = 5
    """Consecutive failures after which a server is not called for the cooldown."""
    cooldown: Duration = Duration(5.0)
    """Time without calls after repeated failures; then one request retries."""
    api_key_file: PathText = ""
    """File with the API key of the engines (`--api-key`), sent as bearer token; empty for none."""


class AdmissionConfig(Section, frozen=True):
    """Priorities of requests, and rejection of those below 0 with 429 while the fleet is saturated."""

    objectives: dict[str, int] = {}
    """Objective, from the header `x-llm-d-inference-objective` -> priority; requests below 0 can be rejected."""
    queue_depth_threshold: Annotated[int, Meta(ge=0)] = 5
    """Waiting requests with which an endpoint counts as saturated."""
    kv_cache_util_threshold: Annotated[float, Meta(ge=0, le=1)] = 0.8
    """KV-cache utilization with which an endpoint counts as saturated."""
    metrics_staleness_threshold: Duration = Duration(0.2)
    """Age of the load above which an endpoint counts as saturated; an idle endpoint gets `metricsScrape.idleInterval` more."""


class ModelConfig(Section, frozen=True):
    """Model that endpoints serve."""

    names: tuple[ModelName, ...] = ()
    """Served names and aliases."""
    adapters: tuple[ModelName, ...] = ()
    """Names of LoRA adapters, required with several models; with one model, any other name counts as an adapter."""
    endpoint_labels: dict[str, str] = {}
    """Labels of the endpoints that serve it; empty: all endpoints."""
    tokenizer: PathText = ""
    """Folder with tokenizer.json (and tokenizer_config.json, chat_template.jinja), or one file; empty: no prefix keys."""
    max_model_len: Annotated[int, Meta(ge=1)] | Literal["auto"] = "auto"
    """Length of the context in tokens (`--max-model-len`), with which too long texts are recognized; auto: the most that config.json allows."""
    kv_bytes_per_token: Annotated[int, Meta(ge=1)] | Literal["auto"] = "auto"  # noqa: S105 - a size
    """Bytes of KV state per token, on all GPUs of a server together; auto: from config.json next to the tokenizer."""
    chat: ChatConfig = ChatConfig()
    """Chat rendering."""
    remote_tokenizer: RemoteTokenizerConfig = RemoteTokenizerConfig()
    """Engines that compute token ids."""


class TokenizationConfig(Section, frozen=True):
    """Tokenization of texts."""

    timeout: Duration = Duration(0.4)
    """Longest time that a request waits for its token ids; after it the request is routed without prefix."""
    threads: Annotated[int, Meta(ge=1, le=64)] = 2
    """Threads that encode new text."""
    max_queued_chars: Annotated[int, Meta(ge=65536, le=2**30)] = 16 * 2**20
    """New text that waits for a thread or is being encoded, in characters; longer prompts, and those with more new text than is left, get no prefix."""
    max_piece_bytes: Annotated[int, Meta(ge=4096, le=2**27)] = 2**20
    """Longest text without a place to cut, such as one word, that is encoded; 1 MiB takes 0.3 s and 140 MiB in each thread."""
    cache_mebibytes: Annotated[int, Meta(ge=1)] = 256
    """Memory for the ids of known text, in MiB; a conversation of 30,000 tokens takes about a quarter of one MiB."""
    max_reading_cost: Annotated[int, Meta(ge=10_000, le=100_000_000)] = 1_000_000
    """Limit of reading one request, 20 to 40 ms: a token id costs 1, a list or object 32, and 16 bytes beyond ASCII 1; a request above it is routed without prefix."""
    estimate: EstimateConfig = EstimateConfig()
    """Estimated tokens of prompts whose ids are not known."""
    reload_interval: Duration = Duration(10.0)
    """Time between two checks of the tokenizer's files; changed files are loaded once a check finds them unchanged since the last."""


class StaticEndpoint(Section, frozen=True):
    """One model server."""

    name: Annotated[str, Meta(min_length=1)]
    """Stable name, unique in the file."""
    address: Annotated[str, Meta(min_length=1)]
    """`HOST:PORT` for requests."""
    events: str | None = None
    """ZMQ PUB address; absent: `tcp://HOST:<events.port>`; empty: the endpoint has no events."""
    replay: str | None = None
    """ZMQ ROUTER address; absent: `tcp://HOST:<events.replayPort>`; empty: no replay."""
    snapshots: str | None = None
    """ZMQ ROUTER address of snapshots; absent: `tcp://HOST:<events.snapshotPort>`, none without that; empty: none."""
    metrics: str | None = None
    """Prometheus URL; absent: `http://ADDRESS/metrics`; empty: not scraped."""
    data_parallel_size: Annotated[int, Meta(ge=1, le=1024)] = 1
    """Data-parallel ranks; rank r publishes on port + r."""
    block_size: BlockSize | None = None
    """Tokens per block of the engine until its `/metrics` or events tell them; absent: unknown till then."""
    labels: dict[str, str] = {}
    """Labels, with any names."""


class EndpointsConfig(Section, frozen=True):
    """Source of the model servers."""

    static: tuple[StaticEndpoint, ...] = ()
    """List of the servers."""
    file: PathText = ""
    """File that lists the servers instead of `static`, watched for changes; relative to this file."""
    kubernetes: KubernetesConfig = KubernetesConfig()
    """Pods, instead of `static`."""


Credit = Annotated[float, Meta(ge=0, le=1)]


class TrustCreditConfig(Section, frozen=True):
    """Factor of prefix scores of an endpoint, by the trust in its events."""

    live: Credit = 1
    """Every event was applied."""
    replaying: Credit = 0.9
    """Missing events are being fetched."""
    partial: Credit = 0.8
    """Some events are lost."""
    stale: Credit = 0.5
    """The connection is down."""
    dark: Credit = 0
    """No event was ever received."""


PRIVATE_NETWORKS = (
    "127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "169.254.0.0/16",
    "::1/128", "fc00::/7", "fe80::/10",
)  # fmt: skip
"""Loopback, private, shared and link-local addresses, from which pods publish."""


class CurveConfig(Section, frozen=True):
    """CurveZMQ keys, in files as `zmq.auth.create_certificates` writes them."""

    key_file: PathText = ""
    """Own public and secret key; empty: publishers connect without encryption and keys."""
    peers_folder: PathText = ""
    """Folder of `*.key` files with the public keys of the publishers that may connect."""


class EventsConfig(Section, frozen=True):
    """KV events of the engines."""

    mode: Literal["connect", "bind"] = "connect"
    """connect: to each endpoint's PUB socket; bind: one socket to which all PUB sockets connect, identified by topic."""
    bind: Annotated[str, Meta(min_length=1)] = "tcp://*:5557"
    """ZMQ address to listen on with mode bind; port 0 selects a free port."""
    bind_allow: tuple[str, ...] = PRIVATE_NETWORKS
    """Networks from which publishers may connect with mode bind."""
    bind_max_connections: Annotated[int, Meta(ge=1, le=65_000)] = 4096
    """Connections of publishers at one time with mode bind."""
    curve: CurveConfig = CurveConfig()
    """Keys for mode bind."""
    port: Port = 5557
    """Port of the PUB socket of endpoints that give none."""
    replay_port: Port = 5558
    """Port of the replay socket of endpoints that give none."""
    snapshot_port: Port | None = None
    """Port of the snapshot socket of endpoints that give none (vLLM #57789); absent: they have no snapshots."""
    topic_prefix: str = ""
    """ZMQ subscription prefix; empty accepts every topic."""
    max_queued_bytes: Annotated[int, Meta(ge=1 << 20)] = 64 << 20
    """Messages of one publisher that wait, for their turn or for a missing one; further ones are dropped and fetched by replay."""
    max_replay_bytes: Annotated[int, Meta(ge=1 << 20)] = 64 << 20
    """Replies of all publishers to replay requests that wait; past it a reply is broken off, and its rest requested later."""
    max_replay_batches: Annotated[int, Meta(ge=1)] = 200_000
    """Batches of one reply to a replay request; past it the rest is given up."""
    replay_timeout: Duration = Duration(60.0)
    """Time for one reply to a replay request; past it the rest is given up."""
    trust_credit: TrustCreditConfig = TrustCreditConfig()
    """Factors of prefix scores."""


class TierConfig(Section, frozen=True):
    """One storage tier; the fastest comes first."""

    name: Annotated[str, Meta(min_length=1, max_length=32)]
    """Name in REST, metrics and scorer parameters."""
    media: tuple[str, ...] = ()
    """Names of this tier in events of the engines, case-insensitive; `NAME/REMOTE` and `NAME/OWNER` for some of its blocks."""
    lru_capacity_per_server: BlockCount | Literal["auto", "unlimited"] = "auto"
    """Blocks that a server can hold; auto: learned per endpoint from its metrics, its evictions or the audit."""
    offload_chunk_blocks: BlockCount | Literal["auto"] = "auto"
    """Blocks that an engine moves together; auto: learned from events."""
    source: Literal["auto", "events", "inferred", "routing"] = "auto"
    """Source of information about the tier; auto: selected per endpoint by evidence."""
    scope: Literal["server", "shared"] = "server"
    """shared: every server can load the blocks that any server stored; events may say so too (locality REMOTE)."""
    clear_on_reset: bool = False
    """Whether a reset of the engine's prefix cache clears this tier too; the fastest tier is always cleared."""


DEFAULT_TIERS = (
    TierConfig(name="gpu", media=("GPU",)),
    TierConfig(name="cpu", media=("CPU", "CPU_PINNED", "CPU_TIER1", "LMCACHE-L1")),
    TierConfig(
        name="storage", media=("STORAGE", "FS", "OBJ", "DISK", "EXTERNAL", "SHARED_STORAGE", "CPU_TIER2")
    ),
)


class WeightsConfig(Section, frozen=True):
    """Weights of the default profile's scorers."""

    queue: Weight = 2
    """Weight of `queue-scorer`."""
    kv_cache_utilization: Weight = 2
    """Weight of `kv-cache-utilization-scorer`."""
    gpu_prefix_cache: Weight = 1
    """Weight of `gpu-prefix-cache-scorer`."""
    cpu_prefix_cache: Weight = 1
    """Weight of `cpu-prefix-cache-scorer`."""


class PluginConfig(Section, frozen=True):
    """One plugin, as in EndpointPickerConfig."""

    type: Annotated[str, Meta(min_length=1)]
    """Plugin type; docs/scorers has a page for each."""
    name: str | None = None
    """Name by which profiles and other plugins refer to it, unique; absent or empty: the type."""
    parameters: dict[str, Any] = {}
    """Parameters of the type."""

    @property
    def known_as(self) -> str:
        """Return the name, or the type if there is none."""
        return self.name or self.type


class ProfilePluginConfig(Section, frozen=True):
    """Entry of a plugin in a profile."""

    plugin_ref: Annotated[str, Meta(min_length=1)]
    """Name of a plugin in `plugins`."""
    weight: SignedWeight = 1
    """Weight of a scorer, also a negative one; filters and pickers have none."""


class SchedulingProfileConfig(Section, frozen=True):
    """Scheduling profile, as in EndpointPickerConfig."""

    name: str = "default"
    """Name of the profile; several need a profile handler in `plugins`."""
    plugins: tuple[ProfilePluginConfig, ...] = ()
    """Filters in their order, scorers, and a picker; default picker: `max-score-picker`."""


class IndexConfig(Section, frozen=True):
    """The block index."""

    hash_seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    """Seed of the block keys; clients of /query_by_hash must use the same seed."""


class SnapshotConfig(Section, frozen=True):
    """File that keeps learned state over restarts."""

    file: PathText = ""
    """File for this process only; empty: none, so that every start begins with empty state."""
    interval: Duration = Duration(60.0)
    """Time between two writes; another write follows when the process stops."""
    max_age: Duration = Duration(900.0)
    """Age above which a snapshot is ignored at the start."""


class KVAtlasConfig(Section, frozen=True, tag_field="kind", tag="KVAtlasConfig"):
    """Configuration file of kvatlas."""

    api_version: Literal["kvatlas/v1"]
    """Version of this format."""
    server: ServerConfig = ServerConfig()
    """Listeners."""
    ext_proc: ExtProcConfig = ExtProcConfig()
    """Ext-proc streams."""
    rest: RestConfig = RestConfig()
    """REST calls."""
    admission: AdmissionConfig = AdmissionConfig()
    """Priorities of requests, and rejection of requests."""
    model: ModelConfig = ModelConfig()
    """Model and tokenizer."""
    models: tuple[ModelConfig, ...] = ()
    """Several models instead of `model`, each with the same keys."""
    tokenization: TokenizationConfig = TokenizationConfig()
    """Tokenization."""
    endpoints: EndpointsConfig = EndpointsConfig()
    """Model servers."""
    events: EventsConfig = EventsConfig()
    """KV events."""
    lmcache: LmcacheConfig = LmcacheConfig()
    """LMCache's servers as publishers."""
    tiers: Annotated[tuple[TierConfig, ...], Meta(min_length=1, max_length=8)] = DEFAULT_TIERS
    """Storage tiers, fastest first."""
    approximate: ApproximateConfig = ApproximateConfig()
    """Blocks of endpoints without events."""
    policy: PolicyName = "weights"
    """weights: endpoints are scored by `weights`; latency: the fewest expected milliseconds of all requests together win."""
    weights: WeightsConfig = WeightsConfig()
    """Scorer weights."""
    disaggregation: DisaggregationConfig = DisaggregationConfig()
    """Stages of requests on different servers, with `policy`."""
    plugins: tuple[PluginConfig, ...] = ()
    """Plugins, instead of `policy` and `weights`."""
    scheduling_profiles: tuple[SchedulingProfileConfig, ...] = ()
    """Scheduling profiles; absent: one with every filter, scorer and picker in `plugins`, with weight 1."""
    request_handler: RequestHandlerConfig = RequestHandlerConfig()
    """Request bodies."""
    metrics_scrape: MetricsScrapeConfig = MetricsScrapeConfig()
    """Scraping."""
    scoring: ScoringConfig = ScoringConfig()
    """Scoring."""
    predictions: PredictionsConfig = PredictionsConfig()
    """Predicted prefixes."""
    audit: AuditConfig = AuditConfig()
    """Audit of predictions."""
    decisions: DecisionsConfig = DecisionsConfig()
    """Recent decisions."""
    capacity_curve: CapacityCurveConfig = CapacityCurveConfig()
    """Capacity curve."""
    recorder: RecorderConfig = RecorderConfig()
    """Traces of requests."""
    shadow: ShadowConfig = ShadowConfig()
    """Shadow configuration."""
    leader_election: LeaderElectionConfig = LeaderElectionConfig()
    """Leader election."""
    replicas: ReplicasConfig = ReplicasConfig()
    """Other replicas."""
    index: IndexConfig = IndexConfig()
    """Block index."""
    snapshot: SnapshotConfig = SnapshotConfig()
    """Snapshot file."""
    tracing: TracingConfig = TracingConfig()
    """OpenTelemetry spans."""

    @property
    def served_models(self) -> tuple[ModelConfig, ...]:
        """Return all models: `models`, or the one `model`."""
        return self.models or (self.model,)
