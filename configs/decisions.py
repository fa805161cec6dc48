"""Sections for past decisions: their predictions, the audit of these, and their storage."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from .section import Section
from .units import Duration


class PredictionsConfig(Section, frozen=True):
    """Prompts of recent requests that count as cached until events arrive."""

    enabled: bool = True
    """Whether they count, so that a burst of equal prompts goes to one endpoint."""
    ttl: Duration = Duration(2.0)
    """Time for which they count after the response began, if no event confirms them; before, up to ten minutes."""


class AuditConfig(Section, frozen=True):
    """Comparison of the prompt tokens that engines report as reused with the expected ones."""

    lower_credit: bool = True
    """Whether prefix scores of an endpoint fall while its engine reuses less than expected."""


class DecisionsConfig(Section, frozen=True):
    """Recent decisions, kept for explanation."""

    max_count: Annotated[int, Meta(ge=0, le=1_000_000)] = 1000
    """Number of newest decisions to keep; 0 keeps none."""
    max_mebibytes: Annotated[int, Meta(ge=1, le=65536)] = 64
    """Memory limit in MiB; the oldest are dropped first. One counts as about 6 KiB with 20 endpoints and four scorers, as 48 KiB with 1,024."""
