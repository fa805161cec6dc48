"""How kept decisions would have gone with other weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field

from ..scorers.core.counterfactual import leaders
from ..scorers.core.decision import Decision
from .decision_log import KeptDecision

MAX_MOVED = 20
"""Changed decisions that are named; the figures count all."""

_TERMS_A_PIECE = 10_000
"""Some 1 ms in which no request is answered."""


@dataclass(frozen=True, slots=True)
class Moved:
    """A decision that would have gone elsewhere: to one of `leaders`, in the fleet's order."""

    kept: KeptDecision
    leaders: tuple[str, ...]


@dataclass(slots=True)
class Preview:
    """Decisions beside what other weights would have made of them, each with the inputs that it had.

    What a change would have led to afterwards, other loads and other caches, is not in it. Where several endpoints would
    have shared the highest total, each counts for its part.

    Attributes:
        n_decisions: decisions looked at.
        n_changed: of these, those whose picked endpoint would not have had the highest total.
        n_skipped: others, of which weights do not tell: nobody was picked, or not by the highest total.
        before: endpoint -> decisions that picked it.
        after: endpoint -> decisions that would have.
        n_tokens: prompt tokens of those looked at.
        usable_before: of these, tokens that the picked endpoint had cached.
        usable_after: the same of who would have been picked.
        moved: the newest changed ones.
    """

    n_decisions: int = 0
    n_changed: int = 0
    n_skipped: int = 0
    before: Counter[str] = field(default_factory=Counter[str])
    after: dict[str, float] = field(default_factory=dict[str, float])
    n_tokens: int = 0
    usable_before: int = 0
    usable_after: float = 0.0
    moved: list[Moved] = field(default_factory=list[Moved])

    def add(self, kept: KeptDecision, best: tuple[str, ...] | None) -> None:
        """Count a decision with those who would have led it, None where weights do not tell."""
        if best is None:
            self.n_skipped += 1
            return
        decision = kept.decision
        picked = decision.picked[0]
        self.n_decisions += 1
        self.before[picked] += 1
        self.n_tokens += decision.n_tokens
        cached = _usable(decision, picked)
        self.usable_before += cached
        if picked in best:
            best = (picked,)  # who it was stays: only chance could have said otherwise
        else:
            self.n_changed += 1
            if len(self.moved) < MAX_MOVED:
                self.moved.append(Moved(kept, best))
        for name in best:
            self.after[name] = self.after.get(name, 0.0) + 1 / len(best)
            self.usable_after += _usable(decision, name) / len(best)


def preview(
    decisions: Iterable[KeptDecision], weights: Mapping[str, float]
) -> Generator[None, None, Preview]:
    """The preview, in pieces between which others may run.

    Args:
        decisions: newest first.
        weights: by name of a scorer; those not named keep what they had.
    Cost: O(decisions * candidates * scorers), some 0.1 us each.
    """
    found, n_terms = Preview(), 0
    for kept in decisions:
        found.add(kept, leaders(kept.decision, weights))
        n_terms += len(kept.decision.totals) * len(kept.decision.columns)
        if n_terms >= _TERMS_A_PIECE:
            n_terms = 0
            yield
    return found


def _usable(decision: Decision, name: str) -> int:
    """Prompt tokens cached on an endpoint."""
    prefix = next(each.prefix for each in decision.candidates if each.name == name)
    return prefix.usable_tokens if prefix is not None else 0
