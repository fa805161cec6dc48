"""What plugins learn of other processes: accounts, paces, sessions and cold requests."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kvatlas.scorers.core.candidates import Candidates
from kvatlas.scorers.core.columns import FloatArray
from kvatlas.scorers.core.model import Candidate
from kvatlas.scorers.core.shared import SharedSums, SharedUses
from kvatlas.scorers.core.sibling_sessions import SiblingSessions, digest_of
from kvatlas.scorers.latency.accounts import Accounts
from kvatlas.scorers.latency.lines import (
    BUSY_AT,
    LOG_PACE,
    N_AHEAD,
    N_LINES,
    N_PACE,
    N_TARGETS,
    PACE_TARGETS,
    TOKENS_IN_USE,
    WORK,
)


def candidates() -> Candidates:
    return Candidates.of([Candidate(name=name, address=name, labels={}, load=None) for name in ("a", "b")])


def lines(**named: float) -> list[float]:
    numbers = [0.0] * N_LINES
    for name, value in named.items():
        numbers[{"work": WORK, "ahead": N_AHEAD, "n_pace": N_PACE, "pace": LOG_PACE,
                 "targets": PACE_TARGETS, "n_targets": N_TARGETS}[name]] = value  # fmt: skip
    return numbers


def known(accounts: Accounts) -> FloatArray:
    """Return all lines but what requests hold of a prompt, which nothing is known of."""
    lines = accounts.columns(candidates())
    assert np.isnan(lines[TOKENS_IN_USE]).all()
    return np.delete(lines, TOKENS_IN_USE, axis=0)


def test_accounts_of_siblings_add_up_by_endpoint() -> None:
    accounts = Accounts()
    for owner in ("x", "y"):
        accounts.shared.take(owner, "b", lines(work=100, ahead=1), now=5.0)
    assert accounts.columns(candidates())[[WORK, N_AHEAD]].tolist() == [[0, 200], [0, 2]]

    accounts.shared.take("x", "b", None, now=6.0)
    assert accounts.columns(candidates())[WORK].tolist() == [0, 100]
    accounts.shared.take("y", "b", None, now=6.0)
    assert not known(accounts).any()


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param([1.0], id="number"),
        pytest.param([math.nan] * N_LINES, id="nan"),
        pytest.param([math.inf] * N_LINES, id="infinite"),
        pytest.param([1e16] * N_LINES, id="huge"),
        pytest.param([-1.0] * N_LINES, id="negative"),
        pytest.param([-1e15 if line == BUSY_AT else 1.0 for line in range(N_LINES)], id="future"),
    ],
)
def test_accounts_that_make_no_sense_are_ignored(bad: list[float]) -> None:
    accounts = Accounts()
    accounts.shared.take("x", "b", bad, now=5.0)
    assert not known(accounts).any()


def test_pace_is_learned_from_each_observation_of_siblings_once() -> None:
    one, other = Accounts(), Accounts()
    for error in (0.2, 0.3, -0.1):
        one.learn_pace(one.row("b"), error)
    told = lines(pace=one.columns(candidates())[LOG_PACE, 1], n_pace=3.0, targets=0.0, n_targets=0.0)
    other.shared.take("x", "b", told, now=0.0)  # a sibling that knows more
    assert other.columns(candidates())[LOG_PACE, 1] == told[LOG_PACE]

    one.learn_pace(one.row("b"), 0.4)
    target = told[LOG_PACE] + 0.4
    for _ in range(2):
        told = lines(pace=9.0, n_pace=4.0, targets=target, n_targets=1.0)
        other.shared.take("x", "b", told, now=0.0)

    paces = [each.columns(candidates())[LOG_PACE, 1] for each in (one, other)]
    assert paces[0] == pytest.approx(paces[1])


def test_part_of_an_observation_of_a_sibling_is_none() -> None:
    accounts = Accounts()
    for targets, n_targets in ((0.0, 0.0), (1e15, 1e-300)):
        told = lines(pace=0.1, n_pace=3.0, targets=targets, n_targets=n_targets)
        accounts.shared.take("x", "b", told, now=0.0)
    assert accounts.columns(candidates())[LOG_PACE, 1] == 0.1


def ignore(*_: object) -> None:
    pass


def test_sums_are_collected_only_when_somebody_shares() -> None:
    sums = SharedSums(ignore, ignore, lambda: ())
    uses = SharedUses(ignore, dict)
    sums.note("k")
    uses.note("k", "v")
    assert (sums.changed, uses.changed) == ({}, {})


def test_sessions_of_siblings_are_bounded_and_the_last_use_counts() -> None:
    sessions = SiblingSessions(10.0, most=2)
    sessions.take(digest_of("s"), "new", 5.0, 5.0)
    sessions.take(digest_of("s"), "old", 4.0, 6.0)
    assert sessions.of("s") == ("new", 5.0)

    for name in ("t", "u"):
        sessions.take(digest_of(name), "e", 7.0, 7.0)
    assert (sessions.of("s"), len(sessions.uses())) == (None, 2)
    sessions.take(digest_of("v"), "e", 30.0, 30.0)
    assert sessions.uses().keys() == {digest_of("v")}
    assert "session" not in digest_of("session")
