"""The plugins of one profile, collected."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...scorers.core.base import Admitter, Filter, Picker, Predictor, Scorer
from ...scorers.core.max_score import MaxScorePicker
from ...scorers.core.profile import Profile


@dataclass(slots=True)
class Parts:
    """The plugins of a profile, or of all profiles, by kind."""

    filters: list[tuple[str, Filter]] = field(default_factory=list[tuple[str, Filter]])
    scorers: list[tuple[str, Scorer, float]] = field(default_factory=list[tuple[str, Scorer, float]])
    pickers: list[Picker] = field(default_factory=list[Picker])
    screeners: list[str] = field(default_factory=list[str])
    admitters: list[tuple[str, Admitter]] = field(default_factory=list[tuple[str, Admitter]])
    predictor: tuple[str, Predictor] | None = None

    def profile(self) -> Profile:
        """Return the profile of these plugins.

        Raises:
            ProfileError: see `Profile`.
        """
        return Profile(
            self.scorers,
            self.pickers[0] if self.pickers else MaxScorePicker(),
            self.filters,
            screeners=self.screeners,
            admitters=self.admitters,
            predictor=self.predictor,
        )
