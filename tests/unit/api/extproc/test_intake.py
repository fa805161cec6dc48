"""What all streams together may hold, and who gives way."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from kvatlas.api.extproc.intake import MAX_REVOKED, SLOW_SECONDS, SMALL_BYTES, Intake, Share
from kvatlas.routing.router import Overload

MAX_REQUESTS, MAX_BYTES, MAX_SECONDS = 3, 100, 5
MAX_LARGE_BYTES = 75


class IntakeMachine(RuleBasedStateMachine):
    """Streams come, collect, hold and go; the intake is the sum of what they were granted and not revoked."""

    shares: Bundle[Share] = Bundle("shares")

    def __init__(self) -> None:
        super().__init__()
        self.intake = Intake(max_requests=MAX_REQUESTS, max_bytes=MAX_BYTES, max_seconds=MAX_SECONDS)
        self.now = 0.0
        self.pending: set[Share] = set()
        self.collecting: dict[Share, float] = {}
        self.held: dict[Share, int] = {}
        self.routed: set[Share] = set()
        self.n_open = 0

    @rule(target=shares)
    def come(self) -> Share:
        self.n_open += 1
        share = self.intake.share(lambda _: self.release(share))
        return share

    @rule(n_seconds=st.integers(0, 2))
    def wait(self, n_seconds: int) -> None:
        self.now += n_seconds
        self.intake.expire(self.now)
        assert all(self.now - since < MAX_SECONDS for since in self.collecting.values())

    @rule(share=shares)
    def begin(self, share: Share) -> None:
        if share in self.pending or share in self.routed:
            return
        before = len(self.pending)
        if share.admit():
            self.pending.add(share)
            share.collect(now=self.now)
            self.collecting[share] = self.now
        else:
            assert before == MAX_REQUESTS

    @rule(share=shares, n_bytes=st.integers(0, 120))
    def hold(self, share: Share, n_bytes: int) -> None:
        limit = MAX_LARGE_BYTES if share in self.routed else MAX_BYTES
        fitted = sum(self.held.values()) + n_bytes <= limit
        if share.hold(n_bytes):
            self.held[share] = self.held.get(share, 0) + n_bytes
            assert sum(self.held.values()) <= limit
        else:
            assert not fitted

    @rule(share=shares)
    def release(self, share: Share) -> None:
        share.release()
        self.routed.add(share)
        self.pending.discard(share)
        self.collecting.pop(share, None)
        self.held.pop(share, None)

    @rule(share=consumes(shares))
    def go(self, share: Share) -> None:
        self.release(share)
        share.close()
        share.close()
        self.n_open -= 1

    @invariant()
    def adds_up(self) -> None:
        assert self.intake.n_streams == self.n_open
        assert self.intake.n_requests == len(self.pending) <= MAX_REQUESTS
        assert self.intake.n_bytes == sum(self.held.values()) <= MAX_BYTES
        small = sum(n_bytes for share, n_bytes in self.held.items() if share not in self.routed)
        assert self.intake.n_small_bytes == small


TestIntake = IntakeMachine.TestCase
TestIntake.settings = settings(stateful_step_count=40)


class Upload:
    """A stream that collects a body, and gives its room back when told to."""

    def __init__(self, intake: Intake, *, since: float, n_bytes: int = 0) -> None:
        self.reasons: list[Overload] = []
        self.share = intake.share(self.revoked)
        assert self.share.admit()
        self.share.collect(now=since)
        assert self.share.hold(n_bytes)

    def revoked(self, reason: Overload) -> None:
        self.reasons.append(reason)
        self.share.release()


def test_oldest_slow_uploads_give_way_to_new_requests() -> None:
    intake = Intake(max_requests=3)
    first, second, third = [Upload(intake, since=since) for since in (0.0, 0.5, 0.6)]
    intake.expire(0.6 + SLOW_SECONDS)

    assert intake.share().admit()
    assert (first.reasons, second.reasons, third.reasons) == ([Overload.PENDING_REQUESTS], [], [])


def test_nobody_gives_way_amid_a_burst() -> None:
    intake = Intake(max_requests=3)
    uploads = [Upload(intake, since=0.0) for _ in range(3)]
    intake.expire(SLOW_SECONDS / 2)

    assert not intake.share().admit()
    assert not any(upload.reasons for upload in uploads)


def test_oldest_upload_gets_no_room_from_younger_ones() -> None:
    intake = Intake(max_bytes=100)
    first, second = [Upload(intake, since=since, n_bytes=50) for since in (0.0, 0.1)]
    intake.expire(9)

    assert not first.share.hold(1)
    assert second.share.hold(1)
    assert first.reasons == [Overload.HELD_BYTES]


@pytest.mark.parametrize("n_uploads", [1, MAX_REVOKED, 3 * MAX_REVOKED])
def test_few_uploads_expire_at_once(n_uploads: int) -> None:
    intake = Intake(max_seconds=5)
    uploads = [Upload(intake, since=0.0) for _ in range(n_uploads)]

    n_turns = 1
    while intake.expire(5):
        assert sum(len(upload.reasons) for upload in uploads) == n_turns * MAX_REVOKED
        n_turns += 1

    assert all(upload.reasons == [Overload.UPLOAD_TIME] for upload in uploads)


def test_large_bodies_and_responses_leave_a_quarter_to_small_bodies() -> None:
    intake = Intake(max_bytes=4 * SMALL_BYTES)
    large, answered, small = intake.share(), intake.share(), intake.share()
    assert large.hold(3 * SMALL_BYTES)
    answered.release()

    assert not large.hold(1)
    assert not answered.hold(1)
    assert small.hold(SMALL_BYTES)
    assert not small.hold(1)


def test_young_upload_gives_way_to_requests_that_need_far_less() -> None:
    intake = Intake(max_bytes=10_000)
    small, middle, large = [Upload(intake, since=0.0, n_bytes=n) for n in (100, 3900, 6000)]

    assert not intake.share().hold(500)
    newcomer = intake.share()
    assert newcomer.hold(100)
    assert (small.reasons, middle.reasons, large.reasons) == ([], [Overload.HELD_BYTES], [])
    assert newcomer.hold(3800)
    assert not newcomer.hold(100)
    assert not large.reasons


def test_small_bodies_find_their_quarter_free_whatever_transports_hold() -> None:
    intake = Intake(max_bytes=4 * SMALL_BYTES)
    small, grown = intake.share(), intake.share()
    intake.carry(9 * SMALL_BYTES)

    assert grown.hold(SMALL_BYTES)
    assert not small.hold(1)
    assert not grown.hold(1)
    grown.release()
    assert small.hold(SMALL_BYTES)
    small.close()
    assert intake.n_small_bytes == 0
