"""Rates that several processes count together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.scorers.core.model import Candidate
from kvatlas.scorers.filters.roles import ROLE_LABEL
from kvatlas.scorers.latency.joint import JointModel
from kvatlas.scorers.latency.rate import Rate, SharedRates
from support.candidates import endpoint
from support.joint import model_of, scheduler, send
from support.sibling_plugins import Sibling, exchange


def own_rate(owner: Rate, now: float) -> list[float]:
    numbers = owner.numbers(now)
    assert numbers is not None
    return list(numbers)


@given(
    events=st.lists(st.tuples(st.floats(0.0, 20.0), st.integers(0, 3)), min_size=1, max_size=40),
    later=st.floats(0.0, 90.0),
)
def test_rate_of_several_processes_is_that_of_one(events: list[tuple[float, int]], later: float) -> None:
    one, parts, now = Rate(), [Rate() for _ in range(4)], 100.0
    shares = [SharedRates({"answered": each}) for each in parts]
    for after, owner in events:
        now += after
        one.add(now)
        shares[owner].add("answered", now)
        for number, share in enumerate(shares):
            if number != owner:
                share.shared.take(f"r{owner}", "answered", own_rate(parts[owner], now), now=now)

    now += later
    assert [each.at(now) for each in parts] == pytest.approx([one.at(now)] * 4)


def test_events_that_are_taken_back_leave_no_trace() -> None:
    plain, mixed = Rate(), Rate()
    for each in (plain, mixed):
        each.add(0.0)
        each.add(3.0)
    mixed.add(4.0)

    mixed.take_back(4.0)

    assert mixed.at(9.0) == pytest.approx(plain.at(9.0))
    mixed.take_back(9.0)
    mixed.take_back(9.0)
    assert mixed.at(9.0) == 0.0


def test_requests_of_a_sibling_that_is_gone_do_not_count() -> None:
    own = SharedRates({"answered": (rate := Rate())})
    own.add("answered", 0.0)
    alone = rate.at(10.0)
    own.shared.take("x", "answered", [50.0, 10.0], now=10.0)
    assert rate.at(10.0) > 10 * alone

    own.shared.take("x", "answered", None, now=10.0)
    assert rate.at(10.0) == alone


@pytest.mark.parametrize("bad", [[1.0], [-1.0, 0.0], [1.0, -1.0], [1.0, 2.0, 3.0]])
def test_numbers_that_make_no_sense_are_ignored(bad: list[float]) -> None:
    rates = SharedRates({"answered": (rate := Rate())})
    rates.shared.take("x", "answered", bad, now=5.0)
    rates.shared.take("x", "unknown", [1.0, 1.0], now=5.0)
    assert rate.at(5.0) == 0.0
    assert rate.numbers(5.0) is None


def test_replicas_price_by_the_requests_of_all() -> None:
    def one(name: str, role: str) -> Candidate:
        return endpoint(name, in_flight=(100 if role == "decode" else 0, 0), labels={ROLE_LABEL: role})

    fleet = [one("d", "decode"), one("p", "prefill")]
    alone, *replicas = (scheduler(decodeWeight=1.0, fit=False) for _ in range(5))
    siblings = [Sibling(f"r{number}", each.shared.sums) for number, each in enumerate(replicas)]
    for number in range(40):
        now = Sibling.now = number / 10
        send(alone, fleet, n_tokens=1000, now=now)
        send(replicas[number % 4], fleet, n_tokens=1000, now=now)
        exchange(siblings)

    def rates(model: JointModel) -> tuple[float, float]:
        return model.answered_per_ms.at(4.0), model.computed_per_ms.at(4.0)

    assert rates(model_of(alone))[1] > 0.0
    for each in replicas:
        assert rates(model_of(each)) == pytest.approx(rates(model_of(alone)))
