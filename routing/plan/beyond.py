"""Rules in which decisions go beyond the reference's although its file says nothing of them."""

from __future__ import annotations

from collections.abc import Iterator

from ...configs.schema import KVAtlasConfig, TrustCreditConfig
from ...scorers.no_hit_lru import NoHitLruScorer
from ...scorers.producers import APPROX, PRECISE
from ...scorers.token_load import TokenLoadScorer
from .plan import Plan

NO_TRUST_CREDIT = TrustCreditConfig(live=1, replaying=1, partial=1, stale=1, dark=1)
"""Credits with which the trust in events changes no score."""


def beyond_reference(plan: Plan) -> Iterator[str]:
    """Yield one line for each such rule that the plan's decisions can meet, with the key that switches it off.

    The keys are those of a `KVAtlasConfig` beside the file.
    """
    config = plan.config
    types = {plugin.type for plugin in config.plugins}
    scorers = {scorer.type for _, scorer, _ in plan.profile.scorers}
    if config.predictions.enabled:
        yield (
            f"predictions: the prompt of a routed request counts as cached for {config.predictions.ttl}, until events "
            "arrive; off with predictions.enabled: false"
        )
    yield from _credits(config)
    if types & {PRECISE, "precise-prefix-cache-scorer"} and not config.scoring.whole_blocks:
        yield (
            "part blocks: the credits of cached blocks are added up and not cut down to whole blocks; "
            "off with scoring.wholeBlocks: true"
        )
    if APPROX in types:
        yield from _approximate(config)
    if TokenLoadScorer.type in scorers:
        yield (
            "uncached tokens: those of a request are counted in tokens, whichever tier has the others; the reference "
            "takes a CPU block as 0.2 uncached. There is no key"
        )
    if NoHitLruScorer.type in scorers:
        yield (
            "cold requests: servers that never had one take them in the order of their names; the reference's order "
            "changes by chance. There is no key"
        )


def _approximate(config: KVAtlasConfig) -> Iterator[str]:
    if config.approximate.auto_tune:
        yield (
            "block sizes: each server is indexed at its own block size, of which its engine's number of blocks is too; "
            "the reference takes the first server's size for all, and the number in blocks of at least 64 tokens; "
            "off with approximate.autoTune: false"
        )
    yield (
        "full servers: they drop the end of a prompt first, as engines do; the reference drops the beginning first. "
        "There is no key"
    )


def _credits(config: KVAtlasConfig) -> Iterator[str]:
    if config.events.trust_credit != NO_TRUST_CREDIT:
        off = ", ".join(f"{name}: 1" for name in TrustCreditConfig.__struct_fields__)
        yield (
            "trust credit: the prefix scores of an endpoint are lower while its events are incomplete; "
            f"off with events.trustCredit: {{{off}}}"
        )
    if config.audit.lower_credit:
        yield (
            "audit credit: the prefix scores of an endpoint fall while its engine reuses less than expected; "
            "off with audit.lowerCredit: false"
        )
