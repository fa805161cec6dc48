"""The answer of `/v1/shadow`."""

from __future__ import annotations

from pydantic import Field

from ...configs.section import PolicyName
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


class ShadowIn(Own):
    """Body of `PUT /v1/shadow`."""

    policy: PolicyName | None = Field(description="null: no shadow")


class ShadowOut(Own):
    """Answer of `/v1/shadow`."""

    policy: PolicyName | None = Field(
        default=None, description="the shadow's policy; null: it has a file, or there is none"
    )
    file: str | None = Field(
        description="the shadow's configuration; null: it has a policy, or there is none"
    )
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
    live_ttft_seconds: MeanOut | None = Field(
        default=None, description="expected time to first token where requests went"
    )
    shadow_ttft_seconds: MeanOut | None = Field(default=None, description="the same by the shadow's picks")
    terms: dict[str, MeanOut] = Field(
        description="scorer of the shadow: how much more it gave the shadow's pick than the endpoint picked"
    )
    faults: int = Field(description="answers of its plugins that had to be repaired")
    cpu_seconds: float = Field(description="of its decisions")
