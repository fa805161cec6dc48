"""What all streams together may hold."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from kvatlas.api.extproc.intake import Intake, Share

MAX_REQUESTS, MAX_BYTES = 3, 100


class IntakeMachine(RuleBasedStateMachine):
    """Streams come, hold and go; the intake is the sum of what they were granted."""

    shares: Bundle[Share] = Bundle("shares")

    def __init__(self) -> None:
        super().__init__()
        self.intake = Intake(max_requests=MAX_REQUESTS, max_bytes=MAX_BYTES)
        self.pending: set[Share] = set()
        self.held: dict[Share, int] = {}
        self.n_open = 0

    @rule(target=shares)
    def come(self) -> Share:
        self.n_open += 1
        return self.intake.share()

    @rule(share=shares)
    def admit(self, share: Share) -> None:
        if share not in self.pending:
            assert share.admit() == (len(self.pending) < MAX_REQUESTS)
            if self.intake.n_requests > len(self.pending):
                self.pending.add(share)

    @rule(share=shares, n_bytes=st.integers(0, 120))
    def hold(self, share: Share, n_bytes: int) -> None:
        fits = sum(self.held.values()) + n_bytes <= MAX_BYTES
        assert share.hold(n_bytes) == fits
        if fits:
            self.held[share] = self.held.get(share, 0) + n_bytes

    @rule(share=shares)
    def release(self, share: Share) -> None:
        share.release()
        self.pending.discard(share)
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


TestIntake = IntakeMachine.TestCase
TestIntake.settings = settings(stateful_step_count=40)
