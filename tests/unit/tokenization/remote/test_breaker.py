from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
)

from kvatlas.tokenization.remote.breaker import CircuitBreaker, Permit

FAILURES = 3
COOLDOWN_S = 10.0


def opened(at: float = 0.0) -> CircuitBreaker:
    breaker = CircuitBreaker(failures=FAILURES, cooldown_s=COOLDOWN_S)
    for _ in range(FAILURES):
        breaker.failed(Permit.NORMAL, at)
    return breaker


def test_breaker_stays_closed_below_the_limit_of_failures() -> None:
    breaker = CircuitBreaker(failures=FAILURES, cooldown_s=COOLDOWN_S)
    for _ in range(5):
        breaker.failed(Permit.NORMAL, 0)
        breaker.failed(Permit.NORMAL, 0)
        breaker.succeeded(Permit.NORMAL)
    assert (breaker.acquire(0), breaker.is_open) == (Permit.NORMAL, False)


@pytest.mark.parametrize(
    ("now", "permit"), [(0, None), (COOLDOWN_S - 0.1, None), (COOLDOWN_S, Permit.PROBE), (1e6, Permit.PROBE)]
)
def test_breaker_allows_one_probe_when_the_cooldown_has_passed(now: float, permit: Permit | None) -> None:
    breaker = opened()
    assert breaker.is_open
    assert breaker.acquire(now) is permit
    assert breaker.acquire(now) is None


def test_breaker_closes_when_the_probe_succeeds() -> None:
    breaker = opened()
    permit = breaker.acquire(COOLDOWN_S)
    assert permit is Permit.PROBE
    breaker.succeeded(permit)
    assert (breaker.is_open, breaker.acquire(COOLDOWN_S)) == (False, Permit.NORMAL)


def test_breaker_stays_open_for_another_cooldown_when_the_probe_fails() -> None:
    breaker = opened()
    permit = breaker.acquire(COOLDOWN_S)
    assert permit is Permit.PROBE
    breaker.failed(permit, COOLDOWN_S + 1)
    assert breaker.acquire(2 * COOLDOWN_S) is None
    assert breaker.acquire(2 * COOLDOWN_S + 1) is Permit.PROBE


def test_next_request_is_the_probe_when_the_last_one_was_cancelled() -> None:
    breaker = opened()
    permit = breaker.acquire(COOLDOWN_S)
    assert permit is Permit.PROBE
    breaker.abandoned(permit)
    assert breaker.acquire(COOLDOWN_S) is Permit.PROBE


def test_late_failures_do_not_extend_the_cooldown() -> None:
    breaker = opened()
    breaker.failed(Permit.NORMAL, COOLDOWN_S - 1)
    assert breaker.acquire(COOLDOWN_S) is Permit.PROBE


class BreakerMachine(RuleBasedStateMachine):
    """Concurrent requests that end in any order and with any outcome."""

    permits: Bundle[Permit] = Bundle("permits")

    def __init__(self) -> None:
        super().__init__()
        self.breaker = CircuitBreaker(failures=FAILURES, cooldown_s=COOLDOWN_S)
        self.now = 0.0
        self.in_a_row = 0
        self.probes = 0

    @rule(seconds=st.sampled_from([0.0, 1.0, COOLDOWN_S]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(target=permits)
    def ask(self) -> MultipleResults[Permit] | Permit:
        was_open = self.breaker.is_open
        permit = self.breaker.acquire(self.now)
        assert was_open or permit is Permit.NORMAL
        if permit is Permit.PROBE:
            assert was_open
            assert not self.probes
            self.probes += 1
        return multiple() if permit is None else permit

    @rule(permit=consumes(permits))
    def succeed(self, permit: Permit) -> None:
        self.end(permit)
        self.breaker.succeeded(permit)
        assert not self.breaker.is_open
        self.in_a_row = 0

    @rule(permit=consumes(permits))
    def fail(self, permit: Permit) -> None:
        self.end(permit)
        self.breaker.failed(permit, self.now)
        self.in_a_row += 1

    @rule(permit=consumes(permits))
    def give_up(self, permit: Permit) -> None:
        self.end(permit)
        self.breaker.abandoned(permit)

    def end(self, permit: Permit) -> None:
        self.probes -= permit is Permit.PROBE

    @invariant()
    def is_open_after_failures_in_a_row_alone(self) -> None:
        assert self.breaker.is_open == (self.in_a_row >= FAILURES)


TestBreaker = BreakerMachine.TestCase
