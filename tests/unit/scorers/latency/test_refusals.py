"""Requests whose prompt no endpoint computed: nothing is learned from them."""

from __future__ import annotations

import numpy as np
import pytest

from kvatlas.scorers.core.candidates import Candidates
from kvatlas.scorers.core.decision import Decision
from kvatlas.scorers.core.max_score import MaxScorePicker
from kvatlas.scorers.core.model import RequestView
from kvatlas.scorers.core.profile import Profile
from kvatlas.scorers.latency.fleet_cost import FleetCostParams, FleetCostScorer
from kvatlas.scorers.latency.lines import BUSY_AT, BUSY_MS, BUSY_S, PLACED, PLACED_AT, PLACED_NEW, PLACED_S
from support.candidates import endpoint
from support.rating import decide, rated

FLEET = [endpoint("a"), endpoint("b")]


class Routed:
    """A profile with the scorer, and requests through it."""

    def __init__(self) -> None:
        self.scorer = FleetCostScorer(FleetCostParams(), ("gpu", "cpu"))
        self.profile = Profile([("cost", self.scorer, 1.0)], MaxScorePicker())

    def send(self, n_tokens: int, *, now: float, is_streamed: bool = True) -> Decision:
        request = RequestView("m", now, n_tokens=n_tokens, is_streamed=is_streamed)
        decision = decide(self.profile, request, FLEET)
        assert not self.profile.picked(request, decision)
        return decision

    def end(self, decision: Decision, *, is_refused: bool = False) -> None:
        assert not self.profile.ended(decision, tpot_s=None, is_refused=is_refused)

    def recent_work(self, now: float) -> list[float]:
        """Return the sums over both endpoints of what fades."""
        accounts = self.scorer.model.accounts.columns(Candidates.of(FLEET))
        return [
            float(np.sum(accounts[line] * np.exp((accounts[changed_at] - now) / seconds)))
            for line, changed_at, seconds in (
                (BUSY_MS, BUSY_AT, BUSY_S),
                (PLACED, PLACED_AT, PLACED_S),
                (PLACED_NEW, PLACED_AT, PLACED_S),
            )
        ]

    def costs_ms(self, now: float) -> list[float]:
        rates = rated(self.scorer, RequestView("m", now, n_tokens=3000), FLEET)
        return [each.raw or 0.0 for each in rates]


@pytest.mark.parametrize("is_streamed", [True, False])
def test_refused_requests_change_no_cost(*, is_streamed: bool) -> None:
    plain, mixed = Routed(), Routed()
    for number in range(500):  # the means have forgotten their starts
        for each in (plain, mixed):
            each.end(each.send(1000 + number % 40, now=number / 100.0))
    for number in range(40):
        now = 10.0 * (1 + number)
        kept = [each.send(1000 + number, now=now) for each in (plain, mixed)]
        refused = [
            mixed.send(n_tokens, now=now + 1.0, is_streamed=is_streamed) for n_tokens in (900_000, 800_000)
        ]
        for decision in refused:
            mixed.end(decision, is_refused=True)
        for each, decision in zip((plain, mixed), kept, strict=True):
            each.profile.answered(decision, ttft_s=0.1)
            each.end(decision)

    assert mixed.scorer.model.work_tokens == pytest.approx(plain.scorer.model.work_tokens, rel=0.05)
    assert mixed.recent_work(500.0) == pytest.approx(plain.recent_work(500.0), rel=0.02)
    assert mixed.costs_ms(500.0) == pytest.approx(plain.costs_ms(500.0), rel=0.1)
    assert not len(mixed.scorer.model.accounts)


@pytest.mark.parametrize("is_shown", [True, False])
def test_computed_requests_teach_once(*, is_shown: bool) -> None:
    routed = Routed()
    first = routed.send(1000, now=0.0)
    means = routed.scorer.model.means.shared
    assert means.own("typical", 0.0) is None, "whether it is computed is not known yet"

    if is_shown:
        routed.profile.answered(first, ttft_s=0.1)
        assert means.own("typical", 0.0) == (1000.0, 1.0, 1.0, 1000.0)
    routed.end(first)

    assert means.own("typical", 0.0) == (1000.0, 1.0, 1.0, 1000.0)


def test_first_request_that_is_refused_says_nothing_of_the_gateway() -> None:
    routed = Routed()
    routed.end(routed.send(900_000, now=0.0), is_refused=True)

    routed.send(1000, now=1.0)

    assert not routed.scorer.model.accounts.n_due, "its beginning is awaited, not guessed"
