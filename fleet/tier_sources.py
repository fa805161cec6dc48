"""What people are told of where knowledge of a tier comes from."""

from __future__ import annotations

import logging

from ..indexer.sources import SourceChange
from ..indexer.tiers import TierSource, TierTable

log = logging.getLogger(__name__)

DARK_ADVICE = (
    "to know the tier exactly, start vLLM (0.24 or later) with --kv-events-config and, in --kv-transfer-config, "
    '"kv_connector_extra_config": {"self_describing_kv_events": true}'
)
"""What mends a tier that an engine uses without telling."""


def log_source(tiers: TierTable, endpoint: str, rank: int, change: SourceChange) -> None:
    """Say where knowledge of a tier comes from now, and what would make it exact."""
    name, old = tiers.specs[change.tier].name, change.old.value if change.old else "none"
    advice = f"; {DARK_ADVICE}" if change.new is TierSource.INFERRED else ""
    level = logging.WARNING if change.new is TierSource.INFERRED else logging.INFO
    log.log(level, "%s rank %d: source of tier %s is %s (was %s): %s%s",
            endpoint, rank, name, change.new.value, old, change.why, advice)  # fmt: skip
