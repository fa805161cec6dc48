from __future__ import annotations

import msgspec
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

TERMS = Terms(lease_s=15, renew_s=10, retry_s=2)
WALL = 1_700_000_000.25


def election(identity: str = "me") -> LeaseElection:
    return LeaseElection("kvatlas", identity=identity, terms=TERMS, rng=lambda: 0.0)


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
    assert wanted(made, 16).lease.spec.lease_transitions == 4


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


def test_lead_ends_when_the_lease_cannot_be_renewed() -> None:
    made = election()
    made.written(lease("me"), now=0, asked_at=0)
    for now in range(2, 10, 2):
        assert isinstance(made.step(now, wall=WALL), WriteLease)
        made.failed(now=now)
        assert made.leads(now)
    assert not made.leads(10)


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


def test_lease_is_read_when_it_is_one() -> None:
    assert read_lease(msgspec.json.encode(lease("a", leaseDurationSeconds=4))) == lease(
        "a", leaseDurationSeconds=4
    )
    assert read_lease(b'{"metadata": 4}') is None


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
        number=st.integers(0, 2), lost=st.sampled_from(["", "", "request", "answer"]), takes_s=st.floats(0, 3)
    )
    def act(self, number: int, lost: str, takes_s: float) -> None:
        made, asked_at = self.elections[number], self.clock(number)
        step = made.step(asked_at, wall=self.now * 7)
        if isinstance(step, Pause):
            return
        write = step if isinstance(step, WriteLease) else None
        stored = self.store(write) if write and lost != "request" else self.stored
        self.now += takes_s
        now = self.clock(number)
        if lost:
            made.failed(now=now)
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

    @invariant()
    def at_most_one_leads(self) -> None:
        assert len(self.leaders()) <= 1

    def leaders(self) -> list[int]:
        return [number for number in range(3) if self.elections[number].leads(self.clock(number))]

    def teardown(self) -> None:
        for _ in range(40):
            self.now += 1
            for number in range(3):
                self.act(number, "", 0.0)
                self.act(number, "", 0.0)
                self.at_most_one_leads()
        assert len(self.leaders()) == 1


def test_at_most_one_process_leads_and_one_does_in_the_end() -> None:
    run_state_machine_as_test(Processes, settings=settings(max_examples=50, stateful_step_count=40))
