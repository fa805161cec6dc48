"""Rules about what an engine reuses that its answers show to be wrong, each with the key that mends it."""

from __future__ import annotations

from collections.abc import Iterator

from ...fleet.drafters import LABEL
from ...fleet.endpoint import Endpoint
from ...fleet.prompt_ends import LABEL as ENDS_LABEL
from .check import Finding, State


def rules_shown_wrong(endpoint: Endpoint, name: str) -> Iterator[Finding]:
    """Yield what the answers of an endpoint contradict; `name` is its own, or that of its rank."""
    if endpoint.drafter.is_learned:
        yield Finding(
            State.WARN,
            f"{name}: {endpoint.drafter.meaning}, its answers show, and neither events nor metrics do",
            f"label {LABEL} of the endpoint: {str(bool(endpoint.drafter.n_blocks)).lower()!r}",
        )
    if endpoint.ends.shown is not None:
        does = "reuse the last block too" if endpoint.ends.shown else "compute the last block again"
        yield Finding(
            State.WARN,
            f"{name}: its answers to prompts that its slower tiers hold whole {does}, and the rule in use says otherwise",
            f"label {ENDS_LABEL} of the endpoint: {str(endpoint.ends.shown).lower()!r}",
        )
    if endpoint.chunks.shown is not None:
        yield Finding(
            State.WARN,
            f"{name}: what its answers reuse of slower tiers ends with chunks of {endpoint.chunks.shown} blocks, and "
            f"{endpoint.chunks.in_use} are assumed",
            f"tiers[].offloadChunkBlocks of its slower tiers: {endpoint.chunks.shown}",
        )
