"""Changes over REST on several replicas: any interleaving, loss, restart and partition ends with one configuration on all."""

from __future__ import annotations

import itertools
import os

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from kvatlas.fleet.replicas.agreement import LARGE, Outcome
from kvatlas.fleet.replicas.word import MAX_CHANGES_BYTES, Changes, Stamp
from support.agreeing import MS, Network

REPLICAS = st.sampled_from(["r0", "r1", "r2"])
KEYS = st.sampled_from(["weights", "policy"])


class Agreeing(RuleBasedStateMachine):
    """Three replicas on a network that delays and loses, without failures."""

    has_failures = False

    def __init__(self) -> None:
        super().__init__()
        self.network = Network(3)
        self.network.settle()  # they know each other
        self.values = itertools.count()
        self.has_failed = self.has_forced = False

    @rule(replica=REPLICAS, key=KEYS, bad=st.sampled_from(["", "", "", "bad-r1-", "bad-r2-"]))
    def propose(self, replica: str, key: str, bad: str) -> None:
        value = f"{bad}{next(self.values)}".encode()
        self.network.propose(replica, {key: value})

    @rule(replica=REPLICAS, key=KEYS)
    def remove(self, replica: str, key: str) -> None:
        self.network.propose(replica, {key: None})

    @rule(of=REPLICAS, to=REPLICAS, skip=st.integers(0, 3))
    def deliver(self, of: str, to: str, skip: int) -> None:
        if of != to:
            self.network.deliver(of, to, skip=skip)

    @rule(replica=REPLICAS)
    def act(self, replica: str) -> None:
        self.network.act(replica)

    @rule(ms=st.sampled_from([1, 100, 900]))
    def pass_time(self, ms: int) -> None:
        self.network.pass_time(ms * MS)

    @precondition(lambda self: self.has_failures)
    @rule(replica=REPLICAS, key=KEYS)
    def force(self, replica: str, key: str) -> None:
        self.has_forced = True
        self.network.propose(replica, {key: f"forced-{next(self.values)}".encode()}, force=True)

    @precondition(lambda self: self.has_failures)
    @rule(a=REPLICAS, b=REPLICAS)
    def separate(self, a: str, b: str) -> None:
        if a != b:
            self.has_failed = True
            self.network.separate(a, b)

    @precondition(lambda self: self.has_failures)
    @rule()
    def heal(self) -> None:
        self.network.heal()

    @precondition(lambda self: self.has_failures)
    @rule(replica=REPLICAS)
    def restart(self, replica: str) -> None:
        self.has_failed = True
        self.network.restart(replica)

    def teardown(self) -> None:
        network = self.network
        network.settle()
        nodes = list(network.nodes.values())
        newest = max((node.live for node in nodes), key=lambda each: each.stamp)
        for node in nodes:
            refused = node.agreement.word.refused
            may_refuse = self.has_failed or self.has_forced
            assert node.live == newest or (may_refuse and refused and refused.stamp == newest.stamp)
        everyone = [*nodes, *network.gone]
        ever = {value for node in everyone for each in node.history for value in each.values.values()}
        in_order: list[tuple[Stamp, dict[str, bytes | None]]] = []
        for node in everyone:
            for ticket, changed in node.asked.items():
                outcome = node.outcomes.get(ticket)
                assert outcome is not None or node in network.gone, "every caller is answered"
                if outcome is not None and outcome.stamp is None:
                    assert outcome.refusals, "a refusal names who and why"
                    assert not ever.intersection(changed.values()), "what was refused is in force nowhere"
                elif outcome is not None and outcome.stamp is not None:
                    in_order.append((outcome.stamp, changed))
        assert len({stamp for stamp, _ in in_order}) == len(in_order)
        if not self.has_failed and not self.has_forced:
            values: dict[str, bytes | None] = {}
            for _, changed in sorted(in_order, key=lambda each: each[0]):
                values |= changed
            assert nodes[0].live.values == {key: value for key, value in values.items() if value is not None}


class AgreeingThroughFailures(Agreeing):
    """The same with replicas that are killed, separated and joined again, and with forced changes."""

    has_failures = True


TestAgreeing = Agreeing.TestCase
TestAgreeingThroughFailures = AgreeingThroughFailures.TestCase
TestAgreeing.settings = TestAgreeingThroughFailures.settings = settings(
    settings.get_profile(os.environ.get("HYPOTHESIS_PROFILE", "default")),
    stateful_step_count=40,
)


@pytest.mark.parametrize("force", [False, True])
def test_changes_beyond_one_message_are_refused_and_the_next_one_is_made(*, force: bool) -> None:
    network = Network(2)
    network.settle()
    node = network.nodes["r0"]

    too_much = network.propose("r0", {"weights": b"1" * MAX_CHANGES_BYTES}, force=force)
    network.settle()
    assert node.outcomes[too_much] == Outcome(too_much, None, {"r0": LARGE})
    assert node.live == network.nodes["r1"].live == Changes()

    network.propose("r0", {"weights": b"1"}, force=force)
    network.settle()
    assert node.live.values == network.nodes["r1"].live.values == {"weights": b"1"}
