"""Sections about decisions once they are made: what they let expect, whether it came true, and what is kept of them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from .section import Section
from .units import Duration


class PredictionsConfig(Section, frozen=True):
    """Prompts just sent to an endpoint, taken as held there until its events come."""

    enabled: bool = True
    """Whether they are, so that a burst of equal prompts stays together."""
    ttl: Duration = Duration(2.0)
    """How long, where no events confirm it."""


class AuditConfig(Section, frozen=True):
    """What engines say they reused of prompts, beside what was expected."""

    lower_credit: bool = True
    """Whether an endpoint's prefix scores fall where its engine reuses less than expected, until it does again."""


class DecisionsConfig(Section, frozen=True):
    """Decisions kept to be explained."""

    max_count: Annotated[int, Meta(ge=0, le=1_000_000)] = 1000
    """The newest so many; 0 keeps none."""
    max_mebibytes: Annotated[int, Meta(ge=1, le=65536)] = 64
    """Memory they may take; older ones go first. One takes about 30 KiB with 20 endpoints and four scorers."""
