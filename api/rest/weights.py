"""`/v1/weights`: the weights in force, a preview of others, and their change."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Body
from pydantic import Field

from ...configs.errors import ConfigError
from ...routing.decision_log import DecisionLog
from ...routing.plan.live import LiveConfig
from ...routing.plan.weights import weights_of
from ...routing.preview import Preview, preview
from .answers import Answers
from .decision_models import DecisionSummaryOut
from .errors import BadRequestError
from .explanation import summary
from .force import Force
from .models import ErrorOut, Own, WeightsOut

Changed = Annotated[dict[str, Any], Body(examples=[{"queue": 3, "cpuPrefixCache": 0.5}])]

_IMPOSSIBLE: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorOut, "description": "a name or value that is impossible"}
}


class WeightOut(Own):
    """One weight."""

    name: str = Field(description="as `PUT /v1/weights` takes it")
    scorer: str = Field(description="name of the scorer, as decisions show it")
    weight: float


class WeightsInForceOut(Own):
    """Answer of `GET /v1/weights`."""

    generation: int = Field(description="of the configuration in force")
    weights: list[WeightOut] = Field(description="in the order of the profile")


class PicksOut(Own):
    """How often one endpoint is picked."""

    name: str
    before: int
    after: float = Field(
        description="with the other weights; where several share the highest total, in parts"
    )


class MovedOut(Own):
    """A decision that would have gone elsewhere."""

    decision: DecisionSummaryOut
    leaders: list[str] = Field(description="who would have had the highest total")


class PreviewOut(Own):
    """Answer of `POST /v1/weights/preview`."""

    decisions: int = Field(description="kept decisions that were looked at")
    changed: int = Field(description="those whose picked endpoint would not have had the highest total")
    skipped: int = Field(description="others: nobody was picked, or not by the highest total")
    tokens: int = Field(description="prompt tokens of those looked at")
    usable_tokens_before: int = Field(description="of these, cached on the endpoint picked")
    usable_tokens_after: float = Field(description="of these, cached on the endpoint that would have been")
    endpoints: list[PicksOut] = Field(description="by name")
    moved: list[MovedOut] = Field(description="the newest 20 that changed")


def weight_routes(live: LiveConfig, log: DecisionLog, answers: Answers) -> APIRouter:
    """Return the routes of `/v1/weights` and `/v1/weights/preview`."""
    router = APIRouter(prefix="/v1", tags=["kvatlas"])

    @router.get("/weights", summary="The weights in force")
    async def weights() -> WeightsInForceOut:
        """Return every scorer's weight, under the name that changes it."""
        found = weights_of(live.plan)
        scorers = live.plan.profile.scorers[: len(found)]  # `weights` are of every stage's profile alike
        return WeightsInForceOut(
            generation=live.generation,
            weights=[
                WeightOut(name=name, scorer=scorer, weight=weight)
                for (name, weight), (scorer, _, _) in zip(found.items(), scorers, strict=True)
            ],
        )

    @router.put("/weights", summary="Change weights", responses=_IMPOSSIBLE)
    async def change(changed: Changed, *, force: Force = False) -> WeightsOut:
        """Change the named weights for every decision from now on; the others stay. With several replicas, on all or on none.

        The file is not written: when it is loaded again, its weights are in force.
        """
        try:
            return await answers.set_weights(changed, force=force)
        except ConfigError as error:
            raise BadRequestError(str(error)) from None

    @router.post("/weights/preview", summary="What would other weights have changed?", responses=_IMPOSSIBLE)
    async def previewed(changed: Changed) -> PreviewOut:
        """Repeat the kept decisions with other values of the named weights, each with its own inputs.

        Changes nothing. The effects of other picks on loads and caches are not included.
        """
        try:
            plan = live.plan_with(changed)
        except ConfigError as error:
            raise BadRequestError(str(error)) from None
        pieces = preview(log.page(limit=len(log)), {name: weight for name, _, weight in plan.profile.scorers})
        while True:
            try:
                next(pieces)
            except StopIteration as end:
                return _preview(end.value)
            await asyncio.sleep(0)

    return router


def _preview(found: Preview) -> PreviewOut:
    return PreviewOut(
        decisions=found.n_decisions,
        changed=found.n_changed,
        skipped=found.n_skipped,
        tokens=found.n_tokens,
        usable_tokens_before=found.usable_before,
        usable_tokens_after=found.usable_after,
        endpoints=[
            PicksOut(name=name, before=found.before[name], after=found.after.get(name, 0.0))
            for name in sorted(found.before.keys() | found.after.keys())
        ],
        moved=[MovedOut(decision=summary(each.kept), leaders=list(each.leaders)) for each in found.moved],
    )
