"""The configuration file as typed data. Field names are the YAML keys in snake case; every key is optional."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from .cluster import KubernetesConfig, LeaderElectionConfig
from .decisions import AuditConfig, DecisionsConfig, PredictionsConfig
from .listeners import ExtProcConfig, RestConfig, ServerConfig
from .observers import CapacityCurveConfig, RecorderConfig, ShadowConfig
from .paths import PathText
from .scraping import MetricsScrapeConfig
from .section import BlockCount, Port, Section, Weight
from .units import Duration


class ChatConfig(Section, frozen=True):
    """How the engines were told to render chats; the defaults are vLLM's own."""

    renderer: Literal["auto", "template", "engine"] = "auto"
    """Who writes the text of a chat: the template, or code of the engine's own; auto: found out from the model's files."""
    template: PathText = ""
    """File with the template that engines use in place of the model's (`--chat-template`); empty: the model's."""
    content_format: Literal["auto", "string", "openai"] = "auto"
    """Form in which templates get message content (`--chat-template-content-format`)."""
    template_kwargs: dict[str, object] = {}
    """What templates see unless a request says otherwise (`--default-chat-template-kwargs`)."""
    exclude_tools_when_tool_choice_none: bool = False
    """Whether requests that forbid tools are rendered without them (the flag of that name)."""
    trust_request_template: bool = False
    """Render templates out of requests (`--trust-request-chat-template`), in a process of their own with limits."""


class RemoteTokenizerConfig(Section, frozen=True):
    """Engines that are asked for the token ids that cannot be computed here."""

    url: str = ""
    """Base URL of a server, `endpoints` for any endpoint that answers, or empty for none."""
    api: Literal["render", "tokenize"] = "render"
    """render: vLLM's /render paths (`--enable-scale-out`, or `vllm launch render`); tokenize: /tokenize, for less."""
    media: bool = False
    """Whether chats with images, audio or video are asked for too; their prefix ends at the first such part otherwise."""
    timeout: Duration = Duration(0.3)
    """Longest wait for ids, all attempts included; past it the request has no prefix."""
    max_concurrent: Annotated[int, Meta(ge=1, le=1024)] = 16
    """Questions under way at once."""
    cache_mebibytes: Annotated[int, Meta(ge=0, le=65536)] = 64
    """Memory for answers."""
    failures: Annotated[int, Meta(ge=1, le=1000)] = 5
    """Failures in a row after which a server is not asked for a while."""
    cooldown: Duration = Duration(5.0)
    """That while; then one request tries."""
    api_key_file: PathText = ""
    """File with the key that engines want (`--api-key`), sent as bearer token; empty for none."""


class AdmissionConfig(Section, frozen=True):
    """Which requests are turned away with 429 while the fleet is saturated."""

    objectives: dict[str, int] = {}
    """Objective, as requests name it in `x-llm-d-inference-objective` -> priority; below 0 may be turned away."""
    queue_depth_threshold: Annotated[int, Meta(ge=0)] = 5
    """Waiting requests of an endpoint that count as saturated."""
    kv_cache_util_threshold: Annotated[float, Meta(ge=0, le=1)] = 0.8
    """KV-cache utilization of an endpoint that counts as saturated."""
    metrics_staleness_threshold: Duration = Duration(0.2)
    """Age past which an endpoint's load counts as saturated; without work it may be `metricsScrape.idleInterval` older."""


class ModelConfig(Section, frozen=True):
    """A model that endpoints serve."""

    names: tuple[str, ...] = ()
    """Served names and aliases."""
    adapters: tuple[str, ...] = ()
    """Names of LoRA adapters, needed with several models: of one alone, every other name is taken for an adapter."""
    endpoint_labels: dict[str, str] = {}
    """Labels of the endpoints that serve it; empty: every endpoint."""
    tokenizer: PathText = ""
    """Folder with tokenizer.json (and tokenizer_config.json, chat_template.jinja), or one file; empty: no prefix keys."""
    kv_bytes_per_token: Annotated[int, Meta(ge=1)] | Literal["auto"] = "auto"  # noqa: S105 - a size
    """Memory of a token's KV state, on all GPUs of a server together; auto: by config.json beside the tokenizer."""
    chat: ChatConfig = ChatConfig()
    """Rendering of chats."""
    remote_tokenizer: RemoteTokenizerConfig = RemoteTokenizerConfig()
    """Engines asked for token ids."""


class TokenizationConfig(Section, frozen=True):
    """Texts to token ids."""

    timeout: Duration = Duration(0.4)
    """Longest time a request waits for its token ids; past it, it is routed without prefix."""
    threads: Annotated[int, Meta(ge=1, le=64)] = 2
    """Threads that encode text that was not seen before."""
    cache_mebibytes: Annotated[int, Meta(ge=1)] = 256
    """Memory for the ids of text seen before, in MiB; a conversation of 30,000 tokens takes about a quarter."""
    reload_interval: Duration = Duration(10.0)
    """How often the tokenizer's files are looked at; changed ones are loaded when they have stayed the same once."""


class StaticEndpoint(Section, frozen=True):
    """One model server."""

    name: Annotated[str, Meta(min_length=1)]
    """Stable name, unique in the file."""
    address: Annotated[str, Meta(min_length=1)]
    """`HOST:PORT` that serves requests."""
    events: str | None = None
    """ZMQ PUB address; absent: `tcp://HOST:<events.port>`; empty: the endpoint has no events."""
    replay: str | None = None
    """ZMQ ROUTER address; absent: `tcp://HOST:<events.replayPort>`; empty: no replay."""
    metrics: str | None = None
    """Prometheus URL; absent: `http://ADDRESS/metrics`; empty: not scraped."""
    data_parallel_size: Annotated[int, Meta(ge=1, le=1024)] = 1
    """Data-parallel ranks; rank r publishes on port + r."""
    labels: dict[str, str] = {}
    """Free labels."""


class EndpointsConfig(Section, frozen=True):
    """Where the model servers are."""

    static: tuple[StaticEndpoint, ...] = ()
    """The servers, written out."""
    file: PathText = ""
    """File that lists the servers in place of `static`, watched for changes; relative to this file."""
    kubernetes: KubernetesConfig = KubernetesConfig()
    """Pods, in place of `static`."""


Credit = Annotated[float, Meta(ge=0, le=1)]


class TrustCreditConfig(Section, frozen=True):
    """What a prefix on an endpoint is worth, by the trust in its events."""

    live: Credit = 1
    """Every event was applied."""
    replaying: Credit = 0.9
    """Missing events are being fetched."""
    partial: Credit = 0.8
    """Some history could not be had."""
    stale: Credit = 0.5
    """The connection is down."""
    dark: Credit = 0
    """Nothing was ever heard."""


class EventsConfig(Section, frozen=True):
    """The KV-event plane."""

    mode: Literal["connect", "bind"] = "connect"
    """connect: to each endpoint's PUB socket; bind: one socket that all PUB sockets connect to, told apart by topic."""
    bind: Annotated[str, Meta(min_length=1)] = "tcp://*:5557"
    """ZMQ address to listen on with mode bind; port 0 takes a free one."""
    port: Port = 5557
    """Port of an endpoint's PUB socket when it names none."""
    replay_port: Port = 5558
    """Port of an endpoint's replay socket when it names none."""
    topic_prefix: str = ""
    """ZMQ subscription prefix; empty takes every topic."""
    trust_credit: TrustCreditConfig = TrustCreditConfig()
    """Factor of prefix scores."""


class TierConfig(Section, frozen=True):
    """One storage tier, listed fastest first."""

    name: Annotated[str, Meta(min_length=1, max_length=32)]
    """Name in REST, metrics and scorer parameters."""
    media: tuple[str, ...] = ()
    """The engines' words for this tier, case-insensitive."""
    lru_capacity_per_server: BlockCount | Literal["auto", "unlimited"] = "auto"
    """Blocks a server can hold; auto: found out for each endpoint, from its metrics, its evictions or the audit."""
    offload_chunk_blocks: BlockCount | Literal["auto"] = "auto"
    """Blocks an engine moves together; auto: learned from events."""
    source: Literal["auto", "events", "inferred", "routing"] = "auto"
    """Where knowledge of the tier comes from; auto: found out for each endpoint."""
    scope: Literal["server", "shared"] = "server"
    """shared: what one server stored there every server can load."""
    clear_on_reset: bool = False
    """Whether a reset of the engine's prefix cache empties this tier too; the fastest tier always is."""


DEFAULT_TIERS = (
    TierConfig(name="gpu", media=("GPU",)),
    TierConfig(name="cpu", media=("CPU", "CPU_PINNED")),
    TierConfig(name="storage", media=("STORAGE", "FS", "OBJ", "DISK", "EXTERNAL", "SHARED_STORAGE")),
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
    name: Annotated[str, Meta(min_length=1)] | None = None
    """Name by which profiles and other plugins refer to it, unique; absent: the type."""
    parameters: dict[str, Any] = {}
    """Parameters of the type."""

    @property
    def known_as(self) -> str:
        """The name, or the type where there is none."""
        return self.name or self.type


class ProfilePluginConfig(Section, frozen=True):
    """A plugin's part in a profile."""

    plugin_ref: Annotated[str, Meta(min_length=1)]
    """Name of a plugin in `plugins`."""
    weight: Weight = 1
    """Weight of a scorer; filters and pickers have none."""


class SchedulingProfileConfig(Section, frozen=True):
    """What decides, as in EndpointPickerConfig."""

    name: str = "default"
    """Name of the profile; there is one."""
    plugins: tuple[ProfilePluginConfig, ...] = ()
    """Filters in their order, scorers, and a picker; without a picker `max-score-picker`."""


class IndexConfig(Section, frozen=True):
    """The block index."""

    hash_seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    """Seed of the block keys; clients of /query_by_hash must use the same."""


class SnapshotConfig(Section, frozen=True):
    """What was learned, kept in a file over restarts."""

    file: PathText = ""
    """Where it is kept, by this process alone; empty: nowhere, every start begins with empty books."""
    interval: Duration = Duration(60.0)
    """Time between two writes; one more is made when the process is told to stop."""
    max_age: Duration = Duration(900.0)
    """Age past which a snapshot is not used at the start."""


class KVAtlasConfig(Section, frozen=True, tag_field="kind", tag="KVAtlasConfig"):
    """The whole file."""

    api_version: Literal["kvatlas/v1"]
    """Version of this format."""
    server: ServerConfig = ServerConfig()
    """Listeners."""
    ext_proc: ExtProcConfig = ExtProcConfig()
    """Ext-proc streams."""
    rest: RestConfig = RestConfig()
    """REST calls."""
    admission: AdmissionConfig = AdmissionConfig()
    """Turning requests away."""
    model: ModelConfig = ModelConfig()
    """Model and tokenizer."""
    models: tuple[ModelConfig, ...] = ()
    """Several models in place of `model`, each with its keys."""
    tokenization: TokenizationConfig = TokenizationConfig()
    """Tokenization."""
    endpoints: EndpointsConfig = EndpointsConfig()
    """Model servers."""
    events: EventsConfig = EventsConfig()
    """KV events."""
    tiers: Annotated[tuple[TierConfig, ...], Meta(min_length=1, max_length=8)] = DEFAULT_TIERS
    """Storage tiers, fastest first."""
    weights: WeightsConfig = WeightsConfig()
    """Scorer weights."""
    plugins: tuple[PluginConfig, ...] = ()
    """Plugins, in place of `weights`."""
    scheduling_profiles: tuple[SchedulingProfileConfig, ...] = ()
    """The profile they make; absent: every filter, scorer and picker in `plugins`, with weight 1."""
    metrics_scrape: MetricsScrapeConfig = MetricsScrapeConfig()
    """Scraping."""
    predictions: PredictionsConfig = PredictionsConfig()
    """Predicted prefixes."""
    audit: AuditConfig = AuditConfig()
    """Audit of expectations."""
    decisions: DecisionsConfig = DecisionsConfig()
    """Kept decisions."""
    capacity_curve: CapacityCurveConfig = CapacityCurveConfig()
    """Size curve."""
    recorder: RecorderConfig = RecorderConfig()
    """Traces of requests."""
    shadow: ShadowConfig = ShadowConfig()
    """Shadow configuration."""
    leader_election: LeaderElectionConfig = LeaderElectionConfig()
    """Leader election."""
    index: IndexConfig = IndexConfig()
    """Block index."""
    snapshot: SnapshotConfig = SnapshotConfig()
    """Snapshot file."""

    @property
    def served_models(self) -> tuple[ModelConfig, ...]:
        """Every model: `models`, else the one `model`."""
        return self.models or (self.model,)
