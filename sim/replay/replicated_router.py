"""Several replicas of a router beside one that knows everything: how often they pick the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...scorers.core.decision import Decision
from ..kv_events import EventBatch
from .indexed_router import IndexedRouter
from .replica_network import ReplicaNetwork
from .router import OtherStages, RouteRequest


@dataclass(slots=True)
class Agreement:
    """How often replicas picked as one router in the same state of the fleet would have.

    Attributes:
        picks: decisions compared.
        equal: those with the same pick.
        tied: those with another pick that chance could have given the one router.
    """

    picks: int = 0
    equal: int = 0
    tied: int = 0

    @property
    def share(self) -> float:
        """Share of the picks that are equal, up to chance ties; 1 without picks."""
        return (self.equal + self.tied) / self.picks if self.picks else 1.0


class ReplicatedRouter:
    """Implements `Router`: requests go to the replicas in turn, events of engines to all.

    Beside them a router that is notified of everything at once decides on each request too. Its picks are compared and not used;
    it books what the replicas picked.

    Args:
        replicas: one router per replica.
        witness: the router beside them.
        network: of the replicas.
        counts_from: number of the first request whose pick is compared.
    """

    def __init__(
        self,
        replicas: Sequence[IndexedRouter],
        witness: IndexedRouter,
        network: ReplicaNetwork,
        *,
        counts_from: int = 0,
    ) -> None:
        self._replicas, self._witness, self._network = replicas, witness, network
        self._counts_from = counts_from
        self._of: dict[int, IndexedRouter] = {}
        self._begun_at: dict[int, float] = {}
        self._n_routed = 0
        self.agreement = Agreement()

    def route(self, request: RouteRequest) -> str | None:
        """See `Router.route`."""
        self._network.run(request.now)
        replica = self._replicas[self._n_routed % len(self._replicas)]
        self._n_routed += 1
        decided = replica.decide(request)
        if not decided.decision.picked:
            return None
        picked = decided.decision.picked[0]
        expected = self._witness.decide(request)
        if request.number >= self._counts_from:
            self._compare(expected.decision, picked)
        replica.send(request, decided)
        self._witness.send(request, expected.instead(picked))
        self._of[request.number] = replica
        return picked

    def other_stages(self, number: int) -> OtherStages:
        """See `Router.other_stages`."""
        return self._of[number].other_stages(number)

    def begun(self, number: int, now: float) -> None:
        """See `Router.begun`."""
        self._network.run(now)
        self._begun_at[number] = now
        for router in (self._of[number], self._witness):
            router.begun(number, now)

    def ended(self, number: int, *, tpot_s: float | None = None, n_output: int | None = None) -> None:
        """See `Router.ended`."""
        begun_at = self._begun_at.pop(number, None)
        if begun_at is not None:
            self._network.run(begun_at + (tpot_s or 0.0) * max(0, (n_output or 1) - 1))
        for router in (self._of.pop(number), self._witness):
            router.ended(number, tpot_s=tpot_s, n_output=n_output)

    def published(self, server: str, batch: EventBatch) -> None:
        """See `Router.published`."""
        self._network.run(batch.ts)
        for router in (*self._replicas, self._witness):
            router.published(server, batch)

    def _compare(self, expected: Decision, picked: str) -> None:
        self.agreement.picks += 1
        if picked == expected.picked[0]:
            self.agreement.equal += 1
        elif picked in expected.tied:
            self.agreement.tied += 1
