"""Finder of an endpoint from which the one that computes a prompt pulls cached blocks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from .base import Rng
from .candidates import Candidates
from .decision import Decision, Placement
from .headers import KV_SOURCE_HEADER
from .prefix_source import PrefixSource


@dataclass(frozen=True, slots=True)
class KvSource:
    """Finder of the source of a pull, which names it to the sidecar.

    Attributes:
        servable: counter of the blocks that an endpoint can send.
        cached: counter of all blocks that it has.
        min_tokens: least tokens that the source can send beyond those which the computing endpoint has.
        prefill_profile: profile of which the first endpoint computes the prompt; without one, it is the one that answers.
    """

    servable: PrefixSource
    cached: PrefixSource
    min_tokens: int
    prefill_profile: str

    def named(self, decision: Decision, profile: str, candidates: Candidates, *, rng: Rng) -> Decision:
        """Return a decision that picked an endpoint, with the source in the headers of its placement, if there is one.

        Args:
            decision: the decision.
            profile: name of the profile that made it if no handler placed its stages.
            candidates: all endpoints, of all stages.
            rng: uniform draws.
        Cost: O(candidates).
        """
        placement = decision.placement or Placement("decode-only", profile)
        stages = (each.decision for each in placement.stages if each.profile == self.prefill_profile)
        row = self._row(candidates, next(stages, decision).best.name, rng)
        if row is not None:
            headers = {**placement.headers, KV_SOURCE_HEADER: candidates[row].address}
            placement = replace(placement, headers=headers)
        return replace(decision, placement=placement)

    def _row(self, candidates: Candidates, computing: str, rng: Rng) -> int | None:
        """Return the row of the source, None if there is none."""
        prefix = candidates.prefix
        if prefix is None:
            return None
        tokens = self.servable.blocks(prefix) * prefix.block_size
        own = candidates.row(computing)
        cached = (self.cached.blocks(prefix) * prefix.block_size)[own] if own is not None else 0.0
        if tokens.max() - cached < self.min_tokens:
            return None
        # A block less is worth a shorter queue.
        near = np.flatnonzero((tokens > 0) & (tokens + prefix.block_size >= tokens.max()))
        chances = np.cumsum(1 / (1 + np.nan_to_num(candidates.waiting[near])))
        row = int(near[np.searchsorted(chances, rng() * chances[-1], side="right")])
        return row if row != own and tokens[row] - cached >= self.min_tokens else None
