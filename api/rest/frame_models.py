"""Frames of `/v1/live`."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from .decision_models import DecisionSummaryOut
from .models import EndpointOut, Own


class TermOut(Own):
    """One scorer's product in a total."""

    name: str
    product: float = Field(description="weight * score")


class RivalOut(Own):
    """The best of the endpoints that were not picked first."""

    name: str
    total: float
    terms: list[TermOut] = Field(description="in the order of the picked endpoint's")


class LiveStageOut(Own):
    """A stage that another endpoint does, with the terms that decided it."""

    name: str = Field(description="prefill or encode")
    picked: list[str] = Field(description="best first")
    total: float
    tie: bool
    terms: list[TermOut] = Field(
        description="of the endpoint picked first, in the order of the stage's profile"
    )
    rival: RivalOut | None = Field(description="null where no other endpoint was scored")


class LiveDecisionOut(DecisionSummaryOut):
    """A decision with the terms that decided it."""

    terms: list[TermOut] = Field(description="of the picked endpoint, in the profile's order")
    rival: RivalOut | None = Field(description="null where no other endpoint was scored")
    dropped: int = Field(description="endpoints that filters dropped")
    no_prefix_reason: str | None = Field(description="why there are no token ids")
    lacking: str | None = Field(
        default=None, description="the stage that no endpoint can do; null if none is lacking"
    )
    stage_reasons: list[LiveStageOut] = Field(default=[], description="of the stages that other endpoints do")
    verdict: str | None = Field(description="of the audit; null until the engine has told what it reused")


class LiveFrame(Own):
    """The state of the process at one time."""

    time: datetime
    ready: bool
    generation: int = Field(description="of the configuration in force")
    keys: int = Field(description="distinct block keys in the index")
    residencies: int = Field(description="blocks held, once a holder")
    bytes: int = Field(description="memory of the index")
    endpoint_count: int
    endpoints: list[EndpointOut] = Field(description="by name, the first 500")
    decision_count: int = Field(description="decisions on requests since the start, where any are kept")
    decisions: list[LiveDecisionOut] = Field(description="the last 20, newest first")
