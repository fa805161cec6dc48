"""A preview of other weights, on kept decisions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field

from ..scorers.core.counterfactual import leaders
from ..scorers.core.decision import Decision
from .decision_log import KeptDecision

MAX_MOVED = 20
"""Most changed decisions listed; the figures count all."""

_TERMS_PER_PIECE = 10_000
"""About 1 ms without serving requests."""


@dataclass(frozen=True, slots=True)
class Moved:
    """A decision that would have picked one of `leaders`, which are in the fleet's order."""

    kept: KeptDecision
    leaders: tuple[str, ...]


@dataclass(slots=True)
class Preview:
    """Decisions beside those that other weights would have made of the same inputs.

    Later effects of a change, as other loads and caches, are not included. If several endpoints would have shared the
    highest total, each counts for an equal part.

    Attributes:
        n_decisions: decisions compared.
        n_changed: of these, decisions whose picked endpoint would not have had the highest total.
        n_skipped: decisions that weights do not decide: none was picked, or not by the highest total.
        before: endpoint -> decisions that picked it.
        after: endpoint -> decisions that would have picked it.
        n_tokens: prompt tokens of the compared decisions.
        usable_before: of these, tokens cached on the picked endpoint.
        usable_after: of these, tokens cached on the endpoint that would have been picked.
        moved: the newest changed decisions.
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
        """Count a decision and the endpoints with the highest new total, None if weights do not decide it."""
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
            best = (picked,)  # it stays: only chance could have picked another
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
    """Make the preview, in pieces between which other tasks may run.

    Args:
        decisions: newest first.
        weights: scorer name -> weight; other scorers keep theirs.
    Cost: O(decisions * candidates * scorers), about 0.1 us each.
    """
    found, n_terms = Preview(), 0
    for kept in decisions:
        found.add(kept, leaders(kept.decision, weights))
        n_terms += kept.decision.scores.size
        if n_terms >= _TERMS_PER_PIECE:
            n_terms = 0
            yield
    return found


def _usable(decision: Decision, name: str) -> int:
    """Return the prompt tokens cached on an endpoint."""
    row, prefixes = decision.table.row(name), decision.prefixes
    return int(prefixes.usable_tokens[row]) if prefixes is not None and row is not None else 0
