from __future__ import annotations

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from kvatlas.fleet.kubernetes.client.lease import (
    Lease,
    LeaseElection,
    LeaseSpec,
    ReadLease,
    Terms,
    WriteLease,
    read_lease,
)
from kvatlas.fleet.kubernetes.client.list_watch import Pause
from support.tree import ROOT

TERMS = Terms(lease_s=15, renew_s=10, retry_s=2)
WALL = 1_700_000_000.25


def election(identity: str = "me", *, jitter: float = 0.0) -> LeaseElection:
    return LeaseElection("kvatlas", identity=identity, terms=TERMS, rng=lambda: jitter)


def lease(holder: str | None = "other", version: str = "7", **spec: int | str) -> Lease:
    return msgspec.convert(
        {
            "metadata": {"name": "kvatlas", "resourceVersion": version},
            "spec": {"holderIdentity": holder} | spec,
        },
        Lease,
    )


def wanted(made: LeaseElection, now: float) -> WriteLease:
    step = made.step(now, wall=WALL)
    assert isinstance(step, WriteLease)
    return step


def test_lease_is_made_when_there_is_none() -> None:
    made = election()
    assert made.step(0, wall=WALL) == ReadLease()
    made.found(None, now=0)
    write = wanted(made, 0)
    assert (write.is_new, write.lease.metadata) == (True, {"name": "kvatlas"})
    time = "2023-11-14T22:13:20.250000Z"
    assert write.lease.spec == LeaseSpec(
        holder_identity="me",
        lease_duration_seconds=15,
        acquire_time=time,
        renew_time=time,
        lease_transitions=0,
    )
    made.written(lease("me"), now=1, asked_at=0)
    assert (made.leads(9.9), made.leads(10), made.leader) == (True, False, "me")


def test_lease_is_renewed_with_what_else_it_has_when_it_is_ours() -> None:
    made = election()
    ours = lease("me", acquireTime="then", leaseTransitions=3)
    made.written(ours, now=0, asked_at=0)
    assert made.step(1, wall=WALL) == Pause(1.0)
    write = wanted(made, 2)
    assert (write.is_new, write.lease.metadata) == (False, ours.metadata)
    assert (write.lease.spec.acquire_time, write.lease.spec.lease_transitions) == ("then", 3)
    assert write.lease.spec.renew_time == "2023-11-14T22:13:20.250000Z"


def test_lease_is_taken_when_its_holder_did_not_renew_it() -> None:
    made = election()
    for now in range(0, 13, 2):
        made.found(lease(leaseTransitions=3), now=now)
        assert made.step(now + 1, wall=WALL) == Pause(1.0)
        assert made.step(now + 2, wall=WALL) == ReadLease()
    made.found(lease(leaseTransitions=3), now=14)
    assert wanted(made, 15).lease.spec.lease_transitions == 4


def test_lease_is_not_taken_when_its_holder_renews_it() -> None:
    made = election()
    for now in range(0, 60, 2):
        made.found(lease(renewTime=f"t{now}", leaseDurationSeconds=5), now=now)
        assert isinstance(made.step(now, wall=WALL), Pause)
        assert made.step(now + 2, wall=WALL) == ReadLease()


def test_lease_is_taken_at_once_when_it_was_given_up() -> None:
    made = election()
    made.found(lease(""), now=0)
    assert wanted(made, 0).lease.spec.holder_identity == "me"


def test_lease_is_read_again_after_a_while_when_somebody_else_wrote_first() -> None:
    made = election()
    made.found(lease(""), now=0)
    made.refused(now=0)
    assert made.step(0, wall=WALL) == Pause(2.0)
    assert made.step(2, wall=WALL) == ReadLease()


def test_lead_ends_when_renewals_are_refused() -> None:
    made = election()
    made.written(lease("me"), now=0, asked_at=0)
    for now in range(2, 10, 2):
        assert not isinstance(made.step(now, wall=WALL), Pause)
        made.failed(now=now, is_outage=False)
        assert made.leads(now)
    assert not made.leads(10)


def test_lead_lasts_when_the_api_server_does_not_answer() -> None:
    made = election()
    made.written(lease("me"), now=0, asked_at=0)
    for now in range(2, 600, 2):
        assert not isinstance(made.step(now, wall=WALL), Pause)
        made.failed(now=now, is_outage=True)
        assert made.leads(now)
    assert made.step(600, wall=WALL) == ReadLease()
    made.found(lease("me"), now=600)
    assert wanted(made, 600).lease.spec.holder_identity == "me"
    made.written(lease("me"), now=600, asked_at=600)
    assert (made.leads(609), made.leads(610)) == (True, False)


def test_lead_of_an_outage_ends_when_the_server_refuses_from_then_on() -> None:
    made = election()
    made.written(lease("me"), now=0, asked_at=0)
    for now, is_outage in ((5, True), (12, False), (14, False)):
        made.failed(now=now, is_outage=is_outage)
    assert (made.leads(14.9), made.leads(15)) == (True, False)


@pytest.mark.parametrize(
    ("is_cut", "leads"),
    [pytest.param(True, False, id="in_what_was_left"), pytest.param(False, True, id="in_the_usual_time")],
)
def test_lead_of_a_refused_process_lasts_only_if_the_server_had_time_to_answer(
    is_cut: bool, leads: bool
) -> None:
    made = election()
    made.found(None, now=0)
    made.written(lease("me"), now=0, asked_at=0)
    for now in (2, 4, 6, 8):
        made.found(lease("me"), now=now)
        made.failed(now=now, is_outage=False)
    made.found(lease("me"), now=9)
    made.failed(now=9.9, is_outage=True, is_cut=is_cut)
    assert made.leads(10.1) is leads


def test_lead_lasts_when_a_slow_server_stops_to_answer_in_what_was_left() -> None:
    made = election()
    made.found(None, now=0)
    made.written(lease("me"), now=0, asked_at=0)
    made.found(lease("me"), now=6)
    made.failed(now=9.9, is_outage=True, is_cut=True)
    assert made.leads(10.1)


@pytest.mark.parametrize("answer", ["another holder", "conflict"])
def test_lead_of_an_outage_ends_at_once_when_another_process_has_written(answer: str) -> None:
    made = election()
    made.written(lease("me"), now=0, asked_at=0)
    for now in (5, 12):
        made.failed(now=now, is_outage=True)
    if answer == "conflict":
        made.refused(now=14)
    else:
        made.found(lease("other"), now=14)
    assert not made.leads(14)


def test_process_does_not_begin_to_lead_in_an_outage() -> None:
    made = election()
    made.found(lease("other"), now=0)
    for now in range(2, 60, 2):
        made.failed(now=now, is_outage=True)
        assert not made.leads(now)
        assert made.step(now + 2, wall=WALL) == ReadLease()
    made.written(lease("me"), now=60, asked_at=60)
    made.failed(now=71, is_outage=True)  # stopped for longer than its lead
    assert not made.leads(71)


def test_time_without_answers_does_not_count_as_silence_of_the_holder() -> None:
    made = election()
    made.found(lease("other"), now=0)
    made.failed(now=14, is_outage=True)
    for now in (40, 42, 54.5):
        made.found(lease("other"), now=now)
        assert isinstance(made.step(now, wall=WALL), Pause)
    assert wanted(made, 55).lease.spec.holder_identity == "me"


def test_lease_is_taken_as_soon_as_its_duration_is_over() -> None:
    made = election()
    made.found(lease("other"), now=0)
    made.found(lease("other"), now=14)
    assert made.step(14, wall=WALL) == Pause(1.0)
    assert wanted(made, 15).lease.spec.holder_identity == "me"


def takeover_s(*, killed_at: float, looks_at: float, jitter: float) -> float:
    """Return the time from the kill of a leader, which renewed at 0, to the lead of a replica."""
    made = election(jitter=jitter)
    made.found(lease(renewTime="before"), now=looks_at - TERMS.retry_s * (1 + 0.2 * jitter))
    now = looks_at
    while not made.leads(now):
        match made.step(now, wall=WALL):
            case Pause(seconds):
                now += seconds + 1e-9  # a timer is never early
            case ReadLease():
                made.found(lease(renewTime="at 0"), now=now)
            case WriteLease() as write:
                made.written(write.lease, now=now, asked_at=now)
    return now - killed_at


def test_another_process_leads_after_a_kill_in_the_time_that_the_docs_name() -> None:
    retry_s = TERMS.retry_s * 1.2
    times = [
        takeover_s(killed_at=killed_at, looks_at=looks_at, jitter=jitter)
        for killed_at in (0.0, retry_s)
        for jitter in (0.0, 0.3, 1.0)
        for looks_at in (0.001, 0.5 * TERMS.retry_s, TERMS.retry_s * (1 + 0.2 * jitter))
    ]
    assert (round(min(times), 1), round(max(times), 1)) == (12.6, 17.4)
    assert "12.6 to 17.4 s after the loss by default" in (ROOT / "docs" / "kubernetes.md").read_text()
    assert Terms() == TERMS


def test_lease_is_given_up_when_it_is_ours() -> None:
    made = election()
    made.written(lease("me", leaseTransitions=3), now=0, asked_at=0)
    write = made.release(wall=WALL)
    assert write is not None
    spec = write.lease.spec
    assert (spec.holder_identity, spec.lease_duration_seconds, spec.lease_transitions) == ("", 1, 3)
    assert not made.leads(0)


def test_nothing_is_given_up_when_the_lease_is_not_ours() -> None:
    made = election()
    assert made.release(wall=WALL) is None
    made.found(lease("other"), now=0)
    assert made.release(wall=WALL) is None


def test_lease_without_a_possible_duration_is_taken_after_the_usual_one() -> None:
    made = election()
    found = read_lease(
        b'{"metadata":{"name":"x"},"spec":{"holderIdentity":"other","leaseDurationSeconds":-5}}'
    )
    assert found is not None
    made.found(found, now=0)
    assert isinstance(made.step(0, wall=WALL), Pause)
    made.found(found, now=14)
    assert isinstance(made.step(14, wall=WALL), Pause)
    made.found(found, now=15)
    assert wanted(made, 15).lease.spec.holder_identity == "me"


def test_lease_with_a_number_that_has_no_float_is_none() -> None:
    body = b'{"metadata":{"name":"x"},"spec":{"holderIdentity":"other","leaseDurationSeconds":%b}}'
    assert read_lease(body % (b"9" * 400)) is None


def test_lease_is_read_when_it_is_one() -> None:
    assert read_lease(msgspec.json.encode(lease("a", leaseDurationSeconds=4))) == lease(
        "a", leaseDurationSeconds=4
    )
    assert read_lease(b'{"metadata": 4}') is None
    assert read_lease(b'{"metadata": {"a": ' + b"[" * 100_000) is None


class Processes(RuleBasedStateMachine):
    """Three processes with one Lease, a server that loses requests and responses, and clocks with any offset."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.stored: Lease | None = None
        self.version = 0
        self.clocks = [0.0, 1e6, 5.0]
        self.elections = [self.fresh(number) for number in range(3)]
        self.n_lives = 3

    def fresh(self, number: int) -> LeaseElection:
        return election(f"p{number}")

    def clock(self, number: int) -> float:
        return self.now + self.clocks[number]

    @rule(seconds=st.floats(0, 9))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(
        number=st.integers(0, 2),
        lost=st.sampled_from(["", "", "request", "answer", "refusal"]),
        takes_s=st.floats(0, 3),
    )
    def act(self, number: int, lost: str, takes_s: float) -> None:
        made, asked_at = self.elections[number], self.clock(number)
        step = made.step(asked_at, wall=self.now * 7)
        if isinstance(step, Pause):
            return
        write = step if isinstance(step, WriteLease) else None
        stored = self.store(write) if write and lost in ("", "answer") else self.stored
        self.now += takes_s
        now = self.clock(number)
        if lost:
            made.failed(now=now, is_outage=lost != "refusal")
        elif write is None:
            made.found(self.stored, now=now)
        elif stored is None:
            made.refused(now=now)
        else:
            made.written(stored, now=now, asked_at=asked_at)

    def store(self, write: WriteLease) -> Lease | None:
        current = self.stored.metadata["resourceVersion"] if self.stored else None
        if write.lease.metadata.get("resourceVersion") != current or write.is_new != (self.stored is None):
            return None
        self.version += 1
        metadata = write.lease.metadata | {"resourceVersion": str(self.version)}
        self.stored = msgspec.structs.replace(write.lease, metadata=metadata)
        return self.stored

    @rule(number=st.integers(0, 2))
    def crash(self, number: int) -> None:
        self.elections[number] = self.fresh(self.n_lives)
        self.n_lives += 1

    @rule(number=st.integers(0, 2))
    def resign(self, number: int) -> None:
        write = self.elections[number].release(wall=self.now)
        if write is not None:
            self.store(write)
        self.crash(number)

    @rule(seconds=st.integers(1, 100))
    def outage(self, seconds: int) -> None:
        """Take the API server from all processes; the leader stays, and leads alone when it is back."""
        self.live(40)
        (leader,) = self.leaders()
        for lost in ("request", ""):
            for _ in range(seconds):
                self.now += 1
                for number in range(3):
                    self.act(number, lost, 0.0)
                    assert self.leaders() == [leader]

    @invariant()
    def at_most_one_has_a_renewed_lease(self) -> None:
        """Check the leaders; one that is cut off alone may continue besides, until it is answered."""
        held = [
            number for number in self.leaders() if not self.elections[number].holds_on(self.clock(number))
        ]
        assert len(held) <= 1

    def leaders(self) -> list[int]:
        return [number for number in range(3) if self.elections[number].leads(self.clock(number))]

    def live(self, seconds: int) -> None:
        """Let all processes act without faults."""
        for _ in range(seconds):
            self.now += 1
            for number in range(3):
                self.act(number, "", 0.0)
                self.act(number, "", 0.0)
                self.at_most_one_has_a_renewed_lease()

    def teardown(self) -> None:
        self.live(40)
        assert len(self.leaders()) == 1


def test_at_most_one_process_leads_and_one_does_in_the_end() -> None:
    run_state_machine_as_test(Processes, settings=settings(max_examples=50, stateful_step_count=40))
