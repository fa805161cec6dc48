"""Log lines about the source of knowledge of a tier."""

from __future__ import annotations

import logging

from ..indexer.sources import SourceChange
from ..indexer.tiers import TierSource, TierTable

log = logging.getLogger(__name__)

DARK_ADVICE = (
    "to know the tier exactly, start vLLM (0.24 or later) with --kv-events-config and, in --kv-transfer-config, "
    '"kv_connector_extra_config": {"self_describing_kv_events": true}'
)
"""Remedy for a tier that an engine uses without sending events for it."""


def log_source(tiers: TierTable, endpoint: str, rank: int, change: SourceChange) -> None:
    """Log the new source of a tier, and what would make it exact."""
    name, old = tiers.specs[change.tier].name, change.old.value if change.old else "none"
    advice = f"; {DARK_ADVICE}" if change.new is TierSource.INFERRED else ""
    if change.new is TierSource.INFERRED:
        level = logging.WARNING
    else:
        level = logging.INFO if change.old else logging.DEBUG  # a thousand pods start with the same source
    log.log(level, "%s rank %d: source of tier %s is %s (was %s): %s%s",
            endpoint, rank, name, change.new.value, old, change.why, advice)  # fmt: skip
