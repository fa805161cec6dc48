"""The profiles of a configuration without plugins: `weights` and `disaggregation`."""

from __future__ import annotations

from ...configs.schema import KVAtlasConfig
from ...scorers.core.base import Filter
from ...scorers.core.profile import Profile
from ...scorers.core.scheduler import Deciding, Scheduler
from ...scorers.deciders.always import MultimodalDecider
from ...scorers.deciders.prefix_based import PrefixBasedDecider
from ...scorers.filters.roles import decode_filter, encode_filter, prefill_filter
from ...scorers.handlers.disagg import DisaggHandler, HandledProfiles
from ...scorers.weights import default_profile


def profile_of_weights(config: KVAtlasConfig) -> Deciding:
    """Return the default profile, or one for each stage with the same weights if stages are on different servers."""
    apart = config.disaggregation
    if not apart.is_on:
        return _profile(config)
    profiles = {"decode": _profile(config, ("decode-filter", decode_filter()))}
    if apart.uncached_tokens:
        profiles["prefill"] = _profile(config, ("prefill-filter", prefill_filter()))
    if apart.encode:
        profiles["encode"] = _profile(config, ("encode-filter", encode_filter()))
    handler = DisaggHandler(
        HandledProfiles(
            prefill="prefill" if apart.uncached_tokens else None, encode="encode" if apart.encode else None
        ),
        prefill=PrefixBasedDecider(apart.uncached_tokens),
        encode=MultimodalDecider(),
        skips_missing=apart.missing_stage == "skip",
    )
    return Scheduler(profiles, handler, reads_media=apart.encode)


def _profile(config: KVAtlasConfig, *filters: tuple[str, Filter]) -> Profile:
    return default_profile(config.weights, tiers=[tier.name for tier in config.tiers], filters=filters)
