"""When endpoints have computed the prompts sent there, as one process expects it and as several do."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvatlas.scorers.core.candidates import Candidates
from kvatlas.scorers.core.decision import Decision
from kvatlas.scorers.core.model import Candidate, RequestView
from kvatlas.scorers.core.scheduler import Scheduler
from kvatlas.scorers.filters.roles import ROLE_LABEL
from kvatlas.scorers.latency.accounts import Accounts
from kvatlas.scorers.latency.lines import READY_AT, SENT_AT, WORK
from kvatlas.scorers.latency.open_request import OpenRequest
from support.candidates import endpoint
from support.joint import model_of, options_of, scheduler, send
from support.rating import decide, routed_to
from support.sibling_plugins import Sibling, exchange

SERVER = endpoint("p")
SECONDS = st.floats(0.01, 2.0)


class Process:
    """Own accounts of one server, which computes one token per second."""

    def __init__(self) -> None:
        self.accounts = Accounts()
        self.accounts.plans_prompts = True

    def open(self, seconds: float, *, now: float, transfer_s: float = 0.0) -> OpenRequest:
        decision = msgspec.structs.replace(routed_to(SERVER, n_tokens=1), at=now)
        request = OpenRequest(decision, self.accounts.row("p"), "", (), 1.0, seconds, 0.0, 0.0)
        self.accounts.open(request, busy_ms=seconds * 1000.0, now=now)
        self.accounts.sent(request, self.accounts.row("d"), transfer_ms=transfer_s * 1000.0)
        return request

    def line(self, line: int) -> float:
        return float(self.accounts.columns(Candidates.of([SERVER]))[line, 0])

    def ahead_s(self, now: float) -> float:
        """Return the seconds until a prompt sent now would be computed first, as pairs are priced by it."""
        return min(max(0.0, self.line(READY_AT) - now), self.line(WORK))


class OneProcess(RuleBasedStateMachine):
    """Prompts, some of which are computed sooner than planned, or whose client leaves.

    Model: they are computed one after the other, each after its pick, and no longer than the work that has neither ended nor left.
    """

    def __init__(self) -> None:
        super().__init__()
        self.process, self.now, self.ready_at = Process(), 100.0, 0.0
        self.open: list[OpenRequest] = []

    def _work(self) -> float:
        return sum(request.work for request in self.open)

    @rule(seconds=st.floats(0.0, 3.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(seconds=SECONDS)
    def pick(self, seconds: float) -> None:
        self.ready_at = min(max(self.now, self.ready_at), self.now + self._work()) + seconds
        self.open.append(self.process.open(seconds, now=self.now))

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        request = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
        self.process.accounts.ended(request.decision)

    @invariant()
    def has_what_is_ahead(self) -> None:
        expected = min(max(0.0, self.ready_at - self.now), self._work())
        assert self.process.ahead_s(self.now) == pytest.approx(expected, abs=1e-9)


TestOneProcess = OneProcess.TestCase


@given(
    picks=st.lists(st.tuples(st.floats(0.0, 2.0), SECONDS, st.integers(0, 3)), min_size=1, max_size=30),
)
def test_several_processes_expect_what_one_does(picks: list[tuple[float, float, int]]) -> None:
    one, several = Process(), [Process() for _ in range(4)]
    siblings = [Sibling(str(at), {"a": each.accounts.shared}) for at, each in enumerate(several)]
    now = 100.0
    for after, seconds, owner in picks:
        now = Sibling.now = now + after
        one.open(seconds, now=now)
        several[owner].open(seconds, now=now)
        exchange(siblings)
        assert [each.line(READY_AT) for each in several] == pytest.approx([one.line(READY_AT)] * 4)


def errors_s(n_processes: int, *, speed: float) -> list[float]:
    """Return by how much too long each prompt is expected to wait at a server with a load of 90 %, after a while.

    Args:
        n_processes: processes that send prompts there.
        speed: how much faster than expected it computes.
    """
    rng, processes = Random(1), [Process() for _ in range(n_processes)]
    siblings = [Sibling(str(at), {"a": each.accounts.shared}) for at, each in enumerate(processes)]
    Sibling.now = now = free_at = 100.0
    answers = list[tuple[float, int, Process, OpenRequest]]()
    errors = list[float]()
    for number in range(400):
        now += rng.expovariate(0.9 * speed)
        while answers and answers[0][0] <= now:
            Sibling.now, _, process, request = heappop(answers)
            process.accounts.ended(request.decision)
            exchange(siblings)
        Sibling.now = now
        process = rng.choice(processes)
        errors.append(process.ahead_s(now) - max(0.0, free_at - now))
        request = process.open(1.0, now=now)
        free_at = max(now, free_at) + 1.0 / speed
        heappush(answers, (free_at + 0.3, number, process, request))
        exchange(siblings)
    return errors[200:]


@pytest.mark.parametrize("n_processes", [1, 2, 5])
def test_error_of_the_queue_does_not_grow(n_processes: int) -> None:
    exact = errors_s(n_processes, speed=1.0)
    assert max(map(abs, exact)) < 1e-6

    errors = errors_s(n_processes, speed=1.25)
    # an expected second is 0.8 of one, for some five prompts in the mean; those of the last 0.3 seconds are not known to be computed
    assert min(errors) > -0.01
    assert sum(errors) / len(errors) < 2.5


def test_transfers_begin_when_early_prompts_are_ready() -> None:
    process = Process()
    requests = [process.open(1.0, now=100.0, transfer_s=0.1) for _ in range(20)]
    for done, request in enumerate(requests, 1):
        process.accounts.ended(request.decision)
        now = 100.0 + 0.5 * done
        process.open(1.0, now=now, transfer_s=0.1)
        assert process.line(READY_AT) == pytest.approx(now + 20)
        assert process.line(SENT_AT) == pytest.approx(now + 20.1)


COSTS = {"prefillTokensPerSecond": 1000.0, "overheadMs": 10.0, "decodeWeight": 1.0, "priceFactor": 0.0}


def terms(made: Scheduler, fleet: Sequence[Candidate], now: float) -> dict[str, float]:
    """Return the terms of the best pair."""
    decision = decide(made, RequestView(model="m", now=now, n_tokens=100), fleet)
    return dict(next(each.terms_ms for each in options_of(decision) if each.prefill))


def test_prompts_whose_clients_left_are_not_ahead() -> None:
    made = scheduler(**COSTS, fit=False, transfer={"gigabitsPerSecond": 100.0, "latencyMs": 5.0})
    fleet = [
        endpoint(name, in_flight=(n, 0), labels={ROLE_LABEL: role})
        for name, n, role in (("d", 100, "decode"), ("p", 0, "prefill"))
    ]
    unused = terms(made, fleet, 0.0)
    decisions: list[Decision] = [send(made, fleet, n_tokens=1000) for _ in range(10)]
    assert terms(made, fleet, 0.5)["queue"] > 9000.0
    for decision in decisions:
        made.ended(decision, tpot_s=None)

    found = terms(made, fleet, 0.5)
    assert found["queue"] == 0.0
    assert found["wait"] == pytest.approx(unused["wait"], abs=1.0)
    later = send(made, fleet, n_tokens=1000, now=0.6)
    assert terms(made, fleet, 0.6)["queue"] == pytest.approx(1014.0, abs=1.0)
    assert model_of(made).alone.accounts.find(later.computing) is not None
