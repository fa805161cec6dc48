"""`p2p-source-producer`: names a server from which cached blocks are pulled to the one that computes a prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from .core.columns import IntArray
from .core.decision import PREFILL
from .core.kv_source import KvSource
from .core.params import BuildContext, PluginParams
from .core.prefix_columns import PrefixColumns
from .core.prefix_source import OneTier, TierCredits
from .core.registry import Registry

P2P_SOURCE = "p2p-source-producer"

HOST_TIER = "cpu"
"""Tier whose blocks an engine sends to others. Source: the reference."""


class P2PSourceParams(PluginParams, frozen=True):
    """Parameters of `p2p-source-producer`."""

    prefix_match_info_producer_name: str = ""
    """Producer of the prefix matches: of a precise one, blocks in the tier `cpu` can be pulled; of an approximate one, all. Empty: the fastest tier."""
    min_cached_token_delta: Annotated[int, Meta(ge=1)] = 1
    """Tokens that the source must have beyond those which the computing server has."""
    prefill_profile_name: str = PREFILL
    """Profile that picks the server which computes the prompt; if it picks none, the server that answers computes it."""


@dataclass(frozen=True, slots=True)
class _Union:
    """Counter of the blocks of the union prefix, all tiers alike."""

    def blocks(self, prefix: PrefixColumns) -> IntArray:
        """Return whole blocks. Implements `PrefixSource`."""
        counted: IntArray = prefix.union_blocks.sum(axis=0)
        return counted


def register(registry: Registry) -> None:
    """Register `p2p-source-producer`."""
    registry.kv_sources.add(P2P_SOURCE, P2PSourceParams, _make)


def _make(params: P2PSourceParams, context: BuildContext) -> KvSource:
    source = context.prefix_source(tier=None, producer=params.prefix_match_info_producer_name)
    is_precise = isinstance(source, TierCredits)
    return KvSource(
        servable=OneTier(HOST_TIER) if is_precise else source,
        cached=_Union() if is_precise else source,
        min_tokens=params.min_cached_token_delta,
        prefill_profile=params.prefill_profile_name,
    )
