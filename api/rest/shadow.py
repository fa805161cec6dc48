"""`/v1/shadow`: what another configuration would have picked."""

from __future__ import annotations

from fastapi import APIRouter

from ...routing.observers.observers import Observers
from ...routing.observers.shadow.shadow import Shadow
from ...scorers.core.shadow import RunningMean, share_interval
from .answers import Answers
from .force import Force
from .models import ChangedOut
from .shadow_models import MeanOut, ShadowIn, ShadowOut, ShareOut

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


def shadow_routes(observers: Observers, answers: Answers) -> APIRouter:
    """Return the routes of `/v1/shadow`."""
    router = APIRouter(prefix="/v1", tags=["kvatlas"])

    @router.get("/shadow", summary="What would another configuration have picked?")
    async def state() -> ShadowOut:
        """Return how often the shadow picks another endpoint, and the expected gain."""
        return _state(observers.shadow) if observers.shadow is not None else NO_SHADOW

    @router.put("/shadow", summary="Compare another policy")
    async def change(body: ShadowIn, *, force: Force = False) -> ChangedOut:
        """Have a policy decide on live requests from now on, in place of any other shadow; it routes none.

        The file is not written: when it is loaded again, its shadow is in force.
        """
        return await answers.set_shadow(body.policy, force=force)

    return router


def _state(shadow: Shadow) -> ShadowOut:
    tally = shadow.tally
    return ShadowOut(
        policy=shadow.config.policy,
        file=shadow.config.file or None,
        refusal=shadow.refusal or None,
        seconds=shadow.age_s,
        requests=shadow.outcomes,
        disagreement=_share(tally.disagreed, tally.compared),
        prompt_tokens=tally.prompt_tokens,
        live_tokens=tally.live_tokens.copy(),
        shadow_tokens=tally.shadow_tokens.copy(),
        cached_gain_tokens=_mean(tally.cached_gain),
        ttft_gain_seconds=_mean(tally.ttft_gain_s),
        live_ttft_seconds=_mean(tally.live_ttft_s),
        shadow_ttft_seconds=_mean(tally.shadow_ttft_s),
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
