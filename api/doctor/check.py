"""Checks, and what they find."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

from .patient import Patient

MAX_SHOWN = 20
"""Findings of one check that are shown; of a large fleet nobody reads more."""


class State(Enum):
    """How it stands, best first."""

    OK = "ok"
    UNKNOWN = "unknown"
    """Nothing to see yet, or not without a running process."""
    WARN = "warn"
    """Requests are served, but worse than they could be, or may soon be."""
    FAIL = "fail"
    """Something that is configured does not work."""


_ORDER = {state: rank for rank, state in enumerate(State)}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing seen.

    Attributes:
        state: how it stands.
        evidence: what was seen, with numbers.
        remedy: the flag or line that mends it; empty where nothing is to be mended.
    """

    state: State
    evidence: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """One question.

    Attributes:
        name: stable, for programs.
        asks: the question, answered by yes where all is well.
        effect: what happens where it is not.
        look: finds what there is to see.
        needs_process: whether a configuration file alone tells nothing.
    """

    name: str
    asks: str
    effect: str
    look: Callable[[Patient], Iterable[Finding]]
    needs_process: bool = True


@dataclass(frozen=True, slots=True)
class Result:
    """What a check found.

    Attributes:
        check: which.
        state: the worst that was found; unknown when nothing was.
        evidence: what shows that state, at most `MAX_SHOWN`.
        remedies: what mends it, each once.
        n_more: findings of that state that are not shown.
    """

    check: Check
    state: State
    evidence: tuple[str, ...]
    remedies: tuple[str, ...]
    n_more: int = 0


def examine(checks: Iterable[Check], patient: Patient) -> list[Result]:
    """What each check finds, in order. Cost: O(endpoints) a check."""
    return [_result(check, patient) for check in checks]


def worst(results: Iterable[Result]) -> State:
    """The worst state of all."""
    return max((result.state for result in results), key=_ORDER.__getitem__, default=State.OK)


def _result(check: Check, patient: Patient) -> Result:
    is_asleep = patient.fleet is None
    findings = [] if check.needs_process and is_asleep else list(check.look(patient))
    nothing = "only a running kvatlas shows this" if is_asleep else "nothing to see yet"
    state = max((each.state for each in findings), key=_ORDER.__getitem__, default=State.UNKNOWN)
    shown = [each for each in findings if each.state is state]
    return Result(
        check,
        state,
        tuple(each.evidence for each in shown[:MAX_SHOWN]) or (nothing,),
        tuple(dict.fromkeys(each.remedy for each in shown if each.remedy)),
        n_more=max(0, len(shown) - MAX_SHOWN),
    )
