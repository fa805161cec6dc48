"""`joint-cost-handler`: chooses the servers that prefill and decode together, by what each choice costs in milliseconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import numpy as np
from msgspec import Meta, field
from msgspec.structs import replace

from ..core.base import Decider, Rng, RunProfile
from ..core.candidates import Candidates
from ..core.columns import FloatArray, Mask, unknown_as_zero
from ..core.decision import ENCODE, PREFILL, Decision, Placement, Stage, WeightedScorer
from ..core.headers import StageHeaders
from ..core.model import RequestView
from ..core.operations import pick_highest
from ..core.params import BuildContext, PluginParams
from ..core.ratings import Inputs
from ..core.registry import Registry
from ..core.shared import SharedSums
from ..core.topology import LEVELS
from ..latency.cost import known_first
from ..latency.joint import JointModel
from ..latency.pairs import Transfer
from ..latency.placements import PlacementCosts, PlacementParams, placement_costs
from .disagg import DECODE, ProfileName, kind_of

BITS = 8.0

KV_BYTES_PER_TOKEN = 262_144.0
"""Bytes of KV state per token if nobody says it: those of a model of 32 billion weights in 16 bits."""


class JointProfiles(PluginParams, frozen=True):
    """`profiles` of `joint-cost-handler`."""

    decode: ProfileName = DECODE
    """Profile whose filters leave the servers that can answer."""
    prefill: ProfileName = PREFILL
    """Profile whose filters leave the servers that can compute prompts for others."""
    encode: ProfileName = ENCODE
    """Profile that picks the servers which encode media."""


class JointDeciders(PluginParams, frozen=True):
    """`deciders` of `joint-cost-handler`."""

    encode: str = ""
    """Name of the decider of the encode stage; absent: there is no such stage."""


class JointCostParams(PlacementParams, frozen=True):
    """Parameters of `joint-cost-handler`."""

    uncached_tokens: Annotated[int, Meta(ge=1)] = 1
    """A prompt of which a decode server lacks fewer tokens is not computed elsewhere for it."""
    missing_stage: Literal["refuse", "skip"] = "skip"
    """Prompt to compute elsewhere, or media to encode, with no server for it: refuse answers 503, skip leaves the stage to the decode server."""
    profiles: JointProfiles = field(default_factory=JointProfiles)
    """Names of the stages' profiles."""
    deciders: JointDeciders = field(default_factory=JointDeciders)
    """Names of the stages' deciders."""


class JointCostHandler:
    """Handler that compares every decode server alone, and every pair of a prefill and a decode server, by cost.

    The cheapest wins; equal costs are a tie, which chance decides. The profiles of both stages count with their filters alone.

    Args:
        params: costs.
        model: predicts and learns.
        encode: decider of the encode stage, None if there is no such stage.

    Attributes:
        model: as above.
    """

    type = "joint-cost-handler"
    max_load_age_s = 0.25  # the batch and the free blocks change with every request that begins or ends

    def __init__(self, params: JointCostParams, model: JointModel, encode: Decider | None = None) -> None:
        self._params, self.model, self._encode = params, model, encode
        self._headers = StageHeaders(params.profiles.prefill, params.profiles.encode)
        self._scorers = (WeightedScorer(self.type, self.type, 1.0),)

    @property
    def compared(self) -> tuple[str, str]:
        """Return the names of the profiles whose filters alone count."""
        return self._params.profiles.decode, self._params.profiles.prefill

    def shared_sums(self) -> Mapping[str, SharedSums]:
        """See `SharesSums`."""
        pairs = self.model.pairs
        return {
            **self.model.alone.shared_sums(),
            "pairs": pairs.ttft.fits.shared,
            "links": pairs.links.shared,
            "rates": self.model.rates.shared,
        }

    def place(
        self,
        request: RequestView,
        candidates: Candidates,  # noqa: ARG002 (Handler)
        run: RunProfile,
        *,
        rng: Rng,
    ) -> Decision:
        """Return the decision of the decode server, with the other stages; see `Handler.place`."""
        params, profiles = self._params, self._params.profiles
        decode = run(profiles.decode)
        if not decode.picked:
            return replace(decode, placement=Placement("none", profiles.decode))
        refuses, stages = params.missing_stage == "refuse", list[Stage]()
        if request.has_body and self._encode is not None and self._encode.wants(request, None):
            encode = Stage(ENCODE, profiles.encode, run(profiles.encode))
            if encode.decision.picked:
                stages.append(encode)
            elif refuses:
                return _refused(decode, profiles.decode, ENCODE)
        receiving = decode.kept
        is_apart = self._apart(request, receiving)
        prefill = run(profiles.prefill) if is_apart is not None else None
        if is_apart is not None and prefill is not None and not prefill.picked:
            if refuses and is_apart.all():
                return _refused(decode, profiles.decode, PREFILL)
            prefill = None
        computing = prefill.kept if prefill is not None else receiving.take(np.empty(0, np.intp))
        costs = placement_costs(params, self.model, request, receiving, computing, is_apart)
        decode, column = self._picked(decode, receiving, costs.least, costs.least, rng)
        row, of_pairs = None, costs.best_pairs(column)
        if prefill is not None and of_pairs is not None:
            shown = np.where(np.isinf(of_pairs), np.nan, of_pairs)
            chosen, row = self._picked(prefill, computing, of_pairs, shown, rng)
            stages.append(Stage(PREFILL, profiles.prefill, chosen))
        return replace(decode, placement=self._placement(decode, stages, costs, row, column))

    def picked(self, request: RequestView, decision: Decision) -> None:
        """Follow a request that was routed."""
        self.model.picked(request, decision)

    def answered(self, decision: Decision, *, ttft_s: float) -> None:
        """Learn from an observed time; what was expected is kept since the pick."""
        self.model.answered(decision, ttft_s=ttft_s)

    def generated(self, decision: Decision, *, n_tokens: int) -> None:
        """Learn from the length of a response."""
        self.model.generated(decision, n_tokens=n_tokens)

    def refused(self, decision: Decision) -> None:
        """Take back what was counted of a request whose prompt was not computed."""
        self.model.refused(decision)

    def ended(self, decision: Decision, *, tpot_s: float | None) -> None:
        """Learn from the time per output token, and forget the request."""
        self.model.ended(decision, tpot_s=tpot_s)

    def _apart(self, request: RequestView, receiving: Candidates) -> Mask | None:
        """Return for which decode servers another may compute the prompt; None if for none."""
        least = self._params.uncached_tokens
        if not request.has_body or request.n_tokens < least:
            return None
        is_apart: Mask = receiving.uncached_tokens(request) >= least
        return is_apart if is_apart.any() else None

    def _picked(
        self, decision: Decision, kept: Candidates, cost_ms: FloatArray, shown_ms: FloatArray, rng: Rng
    ) -> tuple[Decision, int]:
        """Return the decision of a profile with the cheapest of the candidates that it kept, and its row; infinite costs are shown as unknown."""
        scale_ms = self._params.scale_ms
        scores = known_first(unknown_as_zero(scale_ms / (scale_ms + cost_ms)), kept)
        row, tie = pick_highest(scores, rng)
        best = kept[row]
        picked = replace(
            decision,
            scorers=self._scorers,
            inputs=(Inputs(shown_ms),),
            scores=scores[np.newaxis, :],
            picked=(best.name,),
            row=row,
            chosen=best,
            tie=tie,
            picker=self.type,
        )
        return picked, row

    def _placement(
        self, decode: Decision, found: list[Stage], costs: PlacementCosts, row: int | None, column: int
    ) -> Placement:
        # an encode stage of the decode server itself needs no transfer
        stages = tuple(each for each in found if each.decision.picked != decode.picked)
        return Placement(
            kind_of(stages),
            self._params.profiles.decode,
            stages,
            self._headers.of(stages),
            options=tuple(costs.options(row, column)),
        )


def _refused(decode: Decision, profile: str, stage: str) -> Decision:
    """Return the decision on a request with a stage that no server can do."""
    placement = Placement("none", profile, lacking=stage)
    return replace(decode, picked=(), row=-1, chosen=None, placement=placement)


def register(registry: Registry) -> None:
    """Register `joint-cost-handler`."""
    registry.handlers.add(JointCostHandler.type, JointCostParams, _make)


def _make(params: JointCostParams, context: BuildContext) -> JointCostHandler:
    for tier in params.load_tokens_per_second:
        context.known_tier(tier, "loadTokensPerSecond")
    profiles, given = params.profiles, params.transfer
    context.known_profile(profiles.decode, "profiles.decode")
    context.known_profile(profiles.prefill, "profiles.prefill")
    encode = None
    if params.deciders.encode:
        context.known_profile(profiles.encode, "profiles.encode")
        encode = context.decider(params.deciders.encode, "deciders.encode")
    n_bytes = given.kv_bytes_per_token or context.kv_bytes_per_token or KV_BYTES_PER_TOKEN
    transfer = Transfer(
        ms_per_token=n_bytes * BITS / (given.gigabits_per_second * 1e6),
        latency_ms=given.latency_ms,
        only_missing=given.only_missing,
        label=context.topology(given.topology_producer_name).labels[LEVELS.index(given.level)],
    )
    return JointCostHandler(params, JointModel(params, context.tiers, transfer), encode)
