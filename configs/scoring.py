"""Section for scoring, `scoring`."""

from __future__ import annotations

from .section import Section


class ScoringConfig(Section, frozen=True):
    """Scores in which kvatlas goes beyond the reference."""

    whole_blocks: bool = False
    """Whether credited blocks are cut down to a whole number, as in the reference; otherwise two blocks with a credit of 0.8 count as 1.6."""
