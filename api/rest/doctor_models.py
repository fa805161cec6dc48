"""The answer of `/v1/doctor`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .models import Own

StateOut = Literal["ok", "unknown", "warn", "fail"]


class CheckOut(Own):
    """One check."""

    name: str
    asks: str = Field(description="the question, answered by yes where all is well")
    state: StateOut = Field(description="unknown: nothing to see yet, or only a running process shows it")
    evidence: list[str] = Field(description="what shows the state")
    more: int = Field(description="as much again that is not listed")
    effect: str | None = Field(description="what it does; null where all is well")
    remedies: list[str] = Field(description="the flag or line that mends it")


class DoctorOut(Own):
    """Answer of `/v1/doctor`."""

    state: StateOut = Field(description="the worst of all")
    checks: list[CheckOut]
