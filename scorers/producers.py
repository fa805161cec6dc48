"""The reference's producers of prefix matches, which select the source of information about the tiers.

kvatlas has one index whichever producer is named. A producer sets how its tiers are filled and bounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, field

from .core.ignored import Ignored
from .core.params import PluginParams
from .core.prefix_source import ApproxProducer, PreciseProducer
from .core.registry import Registry

APPROX = "approx-prefix-cache-producer"
PRECISE = "precise-prefix-cache-producer"

DEFAULT_LRU_CAPACITY = 31250
"""Blocks per server if the configuration gives no number. Source: the reference's default."""

DEFAULT_BLOCK_SIZE = 16
"""Tokens per block if neither the configuration nor the engine gives a number. Source: the reference's default."""

MIN_TEXT_BLOCK = 64
"""Least estimated tokens per block in a fleet without tokenizer. Source: the reference's minimum for any fleet."""

DEFAULT_CREDITS: Mapping[str, float] = {"gpu": 1.0, "cpu": 0.8, "shared_storage": 0.4, "object_store": 0.2}
"""Credit of a cached block by the engine's word for its tier. Source: the reference's backend weights."""

_MAX_INT = 2**63 - 1
"""Highest number that the reference takes, and the index."""

Size = Annotated[int, Meta(ge=1, le=_MAX_INT)]
Limit = Annotated[int, Meta(ge=0, le=_MAX_INT)]
_ENDPOINTS = Ignored("endpoints come from the configuration or from discovery")
_ONE_INDEX = Ignored("kvatlas has one index, sized by the servers' own capacities")
_LEARNED = Ignored("block sizes and hashes of the engines are learned from their events")

Lifetime = Annotated[str, Meta(pattern=r"^(?=.*[1-9])[0-9]+(\.[0-9]+)?(ms|s|m|h)$")]
"""A duration above zero, such as `2s`."""
PortNumber = Annotated[int, Meta(ge=1, le=65535)]


class ApproxParams(PluginParams, frozen=True):
    """Parameters of `approx-prefix-cache-producer`."""

    auto_tune: bool = True
    """true: the tier has the size that the engine reports."""
    lru_capacity_per_server: Limit = 0
    """Blocks that a server holds, with `autoTune: false` or if the engine reports no number; 0 for 31250."""
    block_size_tokens: Limit = 0
    """Tokens per block, with `autoTune: false` or if the engine reports no size; 0 for 16. Without a tokenizer at least 64."""
    block_size: Limit = 0
    """Older name of `blockSizeTokens`, which takes precedence."""
    max_prefix_tokens_to_match: Limit = 131_072
    """Longest prefix of a prompt without token ids that is matched, in tokens; 0: see `maxPrefixBlocksToMatch`."""
    max_prefix_blocks_to_match: Limit = 2048
    """The same in blocks; 0 for no limit."""

    def producer(self) -> ApproxProducer:
        """Return the producer that the parameters describe."""
        capacity = self.lru_capacity_per_server or DEFAULT_LRU_CAPACITY
        return ApproxProducer(
            None if self.auto_tune else capacity,
            default_capacity=capacity,
            block_size=self.block_size_tokens or self.block_size or DEFAULT_BLOCK_SIZE,
            max_tokens=self.max_prefix_tokens_to_match,
            max_blocks=self.max_prefix_blocks_to_match,
            min_block_size=MIN_TEXT_BLOCK,
        )


class BackendParams(PluginParams, frozen=True):
    """One entry of `kvCacheBackendConfigs`."""

    name: Annotated[str, Meta(min_length=1)]
    """The engine's word for a tier."""
    weight: Annotated[float, Meta(ge=0, le=1)]
    """Credit of a block in that tier."""


class PodDiscoveryParams(PluginParams, frozen=True):
    """`podDiscoveryConfig`."""

    pod_label_selector: Annotated[str, _ENDPOINTS] = ""
    """Accepted without effect: endpoints come from the configuration or discovery."""
    pod_namespace: Annotated[str, _ENDPOINTS] = ""
    """Accepted without effect, as `podLabelSelector`."""
    socket_port: PortNumber | None = None
    """Port of an engine's PUB socket, as `events.port`."""
    replay_socket_port: PortNumber | None = None
    """Port of an engine's replay socket, as `events.replayPort`."""


class KVEventsParams(PluginParams, frozen=True):
    """`kvEventsConfig`."""

    zmq_endpoint: str = ""
    """With `discoverPods: false`: ZMQ address to listen on, as `events.bind`."""
    topic_filter: str = ""
    """ZMQ subscription prefix, as `events.topicPrefix`."""
    concurrency: Annotated[Limit | None, Ignored("events are applied by the event loop, in C++")] = None
    """Accepted without effect: events are applied by the event loop."""
    engine_type: Annotated[
        Literal["vllm", "sglang"] | None, Ignored("the events of both engines are read")
    ] = None
    """Accepted without effect: the events of both are read."""
    tracing: Annotated[bool, Ignored("kvatlas traces requests, not events")] = False
    """Accepted without effect: requests are traced, not events."""
    discover_pods: bool = True
    """true: connect to each engine; false: engines connect to `zmqEndpoint`."""
    pod_discovery_config: PodDiscoveryParams = PodDiscoveryParams()
    """Ports of the engines."""


class IndexerParams(PluginParams, frozen=True):
    """`indexerConfig`."""

    kv_cache_backend_configs: tuple[BackendParams, ...] = ()
    """Credit of a block by tier; default gpu 1, cpu 0.8, shared_storage 0.4, object_store 0.2."""
    kv_block_index_config: Annotated[dict[str, Any], _ONE_INDEX] = field(default_factory=dict[str, Any])
    """Accepted without effect: there is one index."""
    tokenizers_pool_config: Annotated[dict[str, Any], Ignored("the tokenizer is model.tokenizer")] = field(
        default_factory=dict[str, Any]
    )
    """Accepted without effect: the tokenizer is `model.tokenizer`."""


class PreciseParams(PluginParams, frozen=True):
    """Parameters of `precise-prefix-cache-producer`."""

    indexer_config: IndexerParams = IndexerParams()
    """Credits of the tiers."""
    kv_events_config: KVEventsParams = KVEventsParams()
    """Source of the events; used if `events` is not configured."""
    token_processor_config: Annotated[dict[str, Any], _LEARNED] = field(default_factory=dict[str, Any])
    """Accepted without effect: block size and hashes of the engines are learned from their events."""
    session_manager: Annotated[str, Ignored("kvatlas has the exact blocks of every prompt")] = ""
    """Accepted without effect: the name of a plugin that finds the blocks of a session instead of a prompt's."""
    speculative_indexing: bool = True
    """Whether the prompts of recent requests count as cached until events arrive, as `predictions.enabled`; default of the reference: false."""
    speculative_ttl: Lifetime = field(default="2s", name="speculativeTTL")
    """Time for which they count, as `predictions.ttl`."""

    def producer(self) -> PreciseProducer:
        """Return the producer that the parameters describe."""
        backends = {each.name.lower(): each.weight for each in self.indexer_config.kv_cache_backend_configs}
        events = self.kv_events_config
        return PreciseProducer(
            credits=backends or DEFAULT_CREDITS,
            bind=None if events.discover_pods or not events.zmq_endpoint else events.zmq_endpoint,
            port=events.pod_discovery_config.socket_port,
            replay_port=events.pod_discovery_config.replay_socket_port,
            topic_prefix=events.topic_filter,
            predicted_ttl=self.speculative_ttl if self.speculative_indexing else None,
        )


def register(registry: Registry) -> None:
    """Register both producers."""
    registry.producers.add(APPROX, ApproxParams, lambda params, _: params.producer())
    registry.producers.add(PRECISE, PreciseParams, lambda params, _: params.producer())
