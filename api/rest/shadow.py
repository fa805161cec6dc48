"""`/v1/shadow`: what another configuration would have picked."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import Field

from ...routing.observers.shadow.shadow import Shadow
from ...scorers.core.shadow import RunningMean, share_interval
from .models import Own


class MeanOut(Own):
    """A mean over requests."""

    mean: float
    margin: float | None = Field(
        description="half the width of its 95 % interval, as if requests were independent; null for fewer than two"
    )
    requests: int


class ShareOut(Own):
    """A share of requests, with its 95 % interval."""

    share: float
    low: float
    high: float


class ShadowOut(Own):
    """Answer of `/v1/shadow`."""

    file: str | None = Field(description="the shadow's configuration; null: there is none")
    refusal: str | None = Field(description="why what it says does not decide")
    seconds: float = Field(
        description="time since the file or the live configuration changed, from when all below counts"
    )
    requests: dict[str, int] = Field(
        description="routed requests: agreed, disagreed, refused (its filters left nobody); and since the start "
        "not_chosen (shadow.fraction), over_budget (shadow.maxCpu)"
    )
    disagreement: ShareOut | None = Field(description="of agreed and disagreed; null of none")
    prompt_tokens: int = Field(description="of these requests")
    live_tokens: dict[str, int] = Field(description="expected to be reused where requests went, by tier")
    shadow_tokens: dict[str, int] = Field(description="the same by the shadow's picks")
    cached_gain_tokens: MeanOut | None = Field(
        description="how many more tokens a request would be expected to reuse"
    )
    ttft_gain_seconds: MeanOut | None = Field(
        description="how much sooner first tokens would be expected; null until that can be predicted"
    )
    terms: dict[str, MeanOut] = Field(
        description="scorer of the shadow: how much more it gave the shadow's pick than the endpoint picked"
    )
    faults: int = Field(description="answers of its plugins that had to be repaired")
    cpu_seconds: float = Field(description="of its decisions")


NO_SHADOW = ShadowOut(
    file=None,
    refusal=None,
    seconds=0.0,
    requests={},
    disagreement=None,
    prompt_tokens=0,
    live_tokens={},
    shadow_tokens={},
    cached_gain_tokens=None,
    ttft_gain_seconds=None,
    terms={},
    faults=0,
    cpu_seconds=0.0,
)


def shadow_routes(shadow: Shadow | None) -> APIRouter:
    """`/v1/shadow`."""
    router = APIRouter(prefix="/v1", tags=["kvatlas"])

    @router.get("/shadow", summary="What would another configuration have picked?")
    async def state() -> ShadowOut:
        """How often the shadow picks another endpoint, and what that is expected to bring."""
        return _state(shadow) if shadow is not None else NO_SHADOW

    return router


def _state(shadow: Shadow) -> ShadowOut:
    tally = shadow.tally
    return ShadowOut(
        file=str(shadow.file),
        refusal=shadow.refusal or None,
        seconds=shadow.age_s,
        requests=shadow.outcomes,
        disagreement=_share(tally.disagreed, tally.compared),
        prompt_tokens=tally.prompt_tokens,
        live_tokens=tally.live_tokens.copy(),
        shadow_tokens=tally.shadow_tokens.copy(),
        cached_gain_tokens=_mean(tally.cached_gain),
        ttft_gain_seconds=_mean(tally.ttft_gain_s),
        terms={
            name: MeanOut(mean=each.mean, margin=each.margin, requests=each.n)
            for name, each in tally.terms.items()
        },
        faults=sum(shadow.faults.values()),
        cpu_seconds=shadow.cpu_s,
    )


def _mean(mean: RunningMean) -> MeanOut | None:
    return MeanOut(mean=mean.mean, margin=mean.margin, requests=mean.n) if mean.n else None


def _share(part: int, whole: int) -> ShareOut | None:
    if not whole:
        return None
    low, high = share_interval(part, whole)
    return ShareOut(share=part / whole, low=low, high=high)
