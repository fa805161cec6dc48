"""Loads that workers send each other: all sums become right after losses, restarts and silence."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvatlas.app.workers.sibling_loads import ENDPOINTS_PER_MESSAGE, SILENCE_S, SiblingLoads
from kvatlas.fleet.in_flight import InFlight
from kvatlas.scorers.core.model import IDLE, InFlightLoad

N_WORKERS = 3
ENDPOINTS = "ab"


def give(messages: Iterable[bytes], *receivers: SiblingLoads, now: float = 0.0) -> None:
    for message in messages:
        for receiver in receivers:
            receiver.receive(message, now=now)


def test_change_reaches_the_others_when_it_is_published() -> None:
    one, other = SiblingLoads(0, life=1), SiblingLoads(1, life=1)
    one.publish("e", InFlightLoad(2, 30))
    had_news = one.has_changes
    give(one.changes(), other)

    assert (had_news, one.has_changes) == (True, False)
    assert (other.of("e"), one.of("e"), other.of("unknown")) == (InFlightLoad(2, 30), IDLE, IDLE)
    one.publish("e", IDLE)
    give(one.changes(), other)
    assert other.of("e") == IDLE


def test_full_update_repairs_losses() -> None:
    one, other = SiblingLoads(0, life=1), SiblingLoads(1, life=1)
    one.publish("gone", InFlightLoad(1, 1))
    give(one.changes(), other)
    one.publish("gone", IDLE)
    one.publish("new", InFlightLoad(3, 0))
    list(one.changes())  # lost

    give(one.full_state(), other)

    assert (other.of("gone"), other.of("new")) == (IDLE, InFlightLoad(3, 0))


def test_restarted_worker_begins_without_loads() -> None:
    one, other = SiblingLoads(0, life=1), SiblingLoads(1, life=1)
    one.publish("e", InFlightLoad(5, 5))
    give(one.changes(), other)
    again = SiblingLoads(0, life=2)
    again.publish("f", InFlightLoad(1, 0))

    give(again.changes(), other)

    assert (other.of("e"), other.of("f")) == (IDLE, InFlightLoad(1, 0))


def test_silent_worker_is_not_believed() -> None:
    one, other = SiblingLoads(0, life=1), SiblingLoads(1, life=1)
    one.publish("e", InFlightLoad(5, 5))
    give(one.changes(), other, now=10.0)

    other.forget_silent(now=10.0 + SILENCE_S)
    assert other.of("e") == InFlightLoad(5, 5)
    other.forget_silent(now=10.1 + SILENCE_S)
    assert other.of("e") == IDLE


def test_message_that_cannot_be_read_is_ignored() -> None:
    other = SiblingLoads(1, life=1)

    other.receive(b"\xc1", now=0.0)
    other.receive(b"\x95\0\1\xc2\x80" + b"\x91" * 100_000, now=0.0)

    assert other.of("e") == IDLE


def test_many_endpoints_are_published_in_several_messages() -> None:
    one, other = SiblingLoads(0, life=1), SiblingLoads(1, life=1)
    names = [f"endpoint-{number}" for number in range(2 * ENDPOINTS_PER_MESSAGE + 1)]
    for name in names:
        one.publish(name, InFlightLoad(1, 0))

    messages = list(one.full_state())
    give(messages, other)

    assert len(messages) == 3
    assert {other.of(name) for name in names} == {InFlightLoad(1, 0)}


def test_accounts_add_what_siblings_have_sent() -> None:
    siblings, other = SiblingLoads(0, life=1), SiblingLoads(1, life=1)
    shown: dict[str, InFlightLoad] = {}
    accounts, others = InFlight(siblings, on_change=shown.__setitem__), InFlight(other)
    booking = accounts.book("e", tokens=10, now=0.0)
    others.book("e", tokens=7, now=0.0)
    give(other.changes(), siblings)
    give(siblings.changes(), other)

    assert (accounts.of("e"), accounts.own("e")) == (InFlightLoad(2, 17), InFlightLoad(1, 10))
    assert others.of("e") == InFlightLoad(2, 17)
    assert shown == {"e": InFlightLoad(2, 17)}
    accounts.forget("e")
    assert shown == {"e": InFlightLoad(1, 7)}
    booking.ended()  # the endpoint is gone: nothing is published
    give(siblings.changes(), other)
    assert others.of("e") == InFlightLoad(1, 7)


class Workers(RuleBasedStateMachine):
    """Workers whose messages may be lost and that restart; sums are checked after complete updates."""

    def __init__(self) -> None:
        super().__init__()
        self.life = 0.0
        self.workers = [SiblingLoads(worker, life=0.0) for worker in range(N_WORKERS)]
        self.own: list[dict[str, InFlightLoad]] = [{} for _ in range(N_WORKERS)]

    @rule(
        worker=st.integers(0, N_WORKERS - 1),
        endpoint=st.sampled_from(ENDPOINTS),
        load=st.builds(InFlightLoad, st.integers(0, 3), st.integers(0, 100)),
    )
    def change(self, worker: int, endpoint: str, load: InFlightLoad) -> None:
        self.workers[worker].publish(endpoint, load)
        self.own[worker][endpoint] = load

    @rule(worker=st.integers(0, N_WORKERS - 1), lost=st.integers(0, N_WORKERS - 1))
    def tell_news(self, worker: int, lost: int) -> None:
        give(self.workers[worker].changes(), *self.others(worker, lost))

    @rule(worker=st.integers(0, N_WORKERS - 1))
    def start_again(self, worker: int) -> None:
        self.life += 1
        self.workers[worker], self.own[worker] = SiblingLoads(worker, life=self.life), {}

    @rule()
    def tell_everything(self) -> None:
        for worker in range(N_WORKERS):
            give(self.workers[worker].full_state(), *self.others(worker))
        for worker in range(N_WORKERS):
            for endpoint in ENDPOINTS:
                loads = [own.get(endpoint, IDLE) for n, own in enumerate(self.own) if n != worker]
                total = InFlightLoad(sum(each.requests for each in loads), sum(each.tokens for each in loads))
                assert self.workers[worker].of(endpoint) == total

    @invariant()
    def sums_are_never_negative(self) -> None:
        for worker in self.workers:
            for endpoint in ENDPOINTS:
                assert min(worker.of(endpoint).requests, worker.of(endpoint).tokens) >= 0

    def others(self, *left_out: int) -> list[SiblingLoads]:
        return [worker for number, worker in enumerate(self.workers) if number not in left_out]


TestWorkers = Workers.TestCase
