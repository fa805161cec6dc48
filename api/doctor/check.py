"""Checks and their findings."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

from .deployment import Deployment

MAX_SHOWN = 20
"""Findings of one check, and remedies, that are shown; nobody reads more."""


class State(Enum):
    """State of a check, best first."""

    OK = "ok"
    UNKNOWN = "unknown"
    """No evidence yet, or only with a running process."""
    WARN = "warn"
    """Requests are served, but worse than possible now or soon."""
    FAIL = "fail"
    """A configured part does not work."""


_ORDER = {state: rank for rank, state in enumerate(State)}


@dataclass(frozen=True, slots=True)
class Finding:
    """One observation.

    Attributes:
        state: its rating.
        evidence: the observation, with numbers.
        remedy: the flag or line that fixes it; empty if nothing is wrong.
    """

    state: State
    evidence: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """One check.

    Attributes:
        name: stable, for programs.
        asks: the question; yes means that all is well.
        effect: consequence of a no.
        look: yields the findings.
        needs_process: whether a configuration file alone is no evidence.
    """

    name: str
    asks: str
    effect: str
    look: Callable[[Deployment], Iterable[Finding]]
    needs_process: bool = True


@dataclass(frozen=True, slots=True)
class Result:
    """Result of a check.

    Attributes:
        check: the check.
        state: the worst finding's; unknown without findings.
        evidence: of findings with that state, at most `MAX_SHOWN`.
        remedies: of the findings with that state, each once, at most `MAX_SHOWN`.
        n_more: findings of that state that are not shown.
    """

    check: Check
    state: State
    evidence: tuple[str, ...]
    remedies: tuple[str, ...]
    n_more: int = 0


def examine(checks: Iterable[Check], deployment: Deployment) -> list[Result]:
    """Run the checks in order. Cost: O(endpoints) per check."""
    return [_result(check, deployment) for check in checks]


def worst(results: Iterable[Result]) -> State:
    """Return the worst state of all."""
    return max((result.state for result in results), key=_ORDER.__getitem__, default=State.OK)


def _result(check: Check, deployment: Deployment) -> Result:
    is_asleep = deployment.fleet is None
    findings = [] if check.needs_process and is_asleep else list(check.look(deployment))
    nothing = "only a running kvatlas shows this" if is_asleep else "nothing to see yet"
    state = max((each.state for each in findings), key=_ORDER.__getitem__, default=State.UNKNOWN)
    shown = [each for each in findings if each.state is state]
    return Result(
        check,
        state,
        tuple(each.evidence for each in shown[:MAX_SHOWN]) or (nothing,),
        tuple(dict.fromkeys(each.remedy for each in shown if each.remedy))[:MAX_SHOWN],
        n_more=max(0, len(shown) - MAX_SHOWN),
    )
