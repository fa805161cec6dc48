"""The latest decisions, kept unchanged so that they can be explained."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence

import msgspec
from prometheus_client.metrics_core import Metric

from ..fleet.audit import Audited
from ..fleet.families import gauge
from ..scorers.core.decision import Decision
from .control_headers import MAX_ID_CHARS

DECISION_BYTES, SCORER_BYTES, DROP_BYTES = 3900, 250, 250
"""Upper bounds of the memory of a decision without its model's name and its columns, of the inputs of a scorer without their numbers, and of
a dropped candidate with a reason that its filter keeps. A test measures them."""

CHAR_BYTES = 4
"""Largest memory of a character."""

NUMBER_STEP = 64
"""Step between decision numbers of one process, so that the numbers of 64 workers all differ."""


class KeptDecision(msgspec.Struct, gc=False):
    """One decision on a request.

    Attributes:
        number: about the time in microseconds. Later decisions have higher numbers, also across workers.
        request_id: `x-request-id`, or an id made by the protocol shell; a long one is cut.
        at: wall-clock seconds.
        decision: the decision; no endpoint is picked if filters dropped them all.
        size_bytes: memory it counts for.
        audited: the engine's own count afterwards, None until it comes.
    """

    number: int
    request_id: str
    at: float
    decision: Decision
    size_bytes: int
    audited: Audited | None = None


class DecisionLog:
    """The newest decisions, bounded by number and by memory. For one event loop; no locks.

    Args:
        max_count: most decisions kept; 0 keeps none.
        max_bytes: most memory they take; the newest is kept whatever its size.
        worker: number of this process among several, below `NUMBER_STEP`.
    """

    def __init__(self, *, max_count: int, max_bytes: int, worker: int = 0) -> None:
        self._max_count, self._max_bytes, self._worker = max_count, max_bytes, worker
        self._last_number = worker
        self._kept: deque[KeptDecision] = deque()
        self._by_id: dict[str, KeptDecision] = {}
        self.n_seen = 0
        """Decisions added since the start; 0 if none are kept."""
        self.size_bytes = 0
        """Memory of the kept decisions, as counted."""

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, decision: Decision, *, request_id: str, at: float) -> None:
        """Keep a decision; the oldest leave when a limit is reached."""
        if not self._max_count:
            return
        self.n_seen += 1
        request_id = request_id[:MAX_ID_CHARS]
        number = int(at * 1e6) // NUMBER_STEP * NUMBER_STEP + self._worker
        self._last_number = max(number, self._last_number + NUMBER_STEP)
        decision = decision.lasting()
        n_bytes = size_bytes(decision)
        kept = self._by_id[request_id] = KeptDecision(self._last_number, request_id, at, decision, n_bytes)
        self._kept.append(kept)
        self.size_bytes += n_bytes
        while len(self._kept) > self._max_count or (
            self.size_bytes > self._max_bytes and len(self._kept) > 1
        ):
            self._drop_oldest()

    def audited(self, decision: Decision, audited: Audited) -> None:
        """Keep the engine's own count beside a decision, if the decision is still kept."""
        kept = self.get(decision.origin.request_id) if decision.origin is not None else None
        if kept is not None and kept.decision is decision:
            kept.audited = audited

    def get(self, request_id: str) -> KeptDecision | None:
        """Return the newest decision on a request of that id, None if none is kept."""
        return self._by_id.get(request_id[:MAX_ID_CHARS])

    def page(
        self, *, limit: int, endpoint: str | None = None, before: int | None = None
    ) -> Sequence[KeptDecision]:
        """Return decisions, newest first.

        Args:
            limit: most decisions returned.
            endpoint: only decisions that picked this endpoint first; None for all.
            before: only decisions with a smaller number; None for all.
        Cost: O(decisions returned), with an endpoint O(decisions kept).
        """
        found: list[KeptDecision] = []
        end = len(self._kept)
        if before is not None:
            end = bisect_left(self._kept, before, key=lambda kept: kept.number)
        for place in range(end - 1, -1, -1):
            if len(found) == limit:
                break
            kept = self._kept[place]
            if endpoint is None or kept.decision.picked[:1] == (endpoint,):
                found.append(kept)
        return found

    def _drop_oldest(self) -> None:
        oldest = self._kept.popleft()
        self.size_bytes -= oldest.size_bytes
        if self._by_id[oldest.request_id] is oldest:  # otherwise the client used the id again
            del self._by_id[oldest.request_id]


def size_bytes(decision: Decision) -> int:
    """Return an upper bound of the memory of a lasting decision, without what it shares with others. Cost: O(scorers)."""
    n_bytes = len(decision.model) * CHAR_BYTES + decision.n_bytes
    for each in (decision, *(stage.decision for stage in decision.stages)):
        n_bytes += DECISION_BYTES + len(each.scorers) * SCORER_BYTES + each.n_dropped * DROP_BYTES
    return n_bytes


def decision_families(log: DecisionLog) -> Iterator[Metric]:
    """Yield metrics of the kept decisions."""
    kept = gauge("decisions_kept", "Decisions kept to be explained.")
    kept.add_metric([], len(log))
    n_bytes = gauge("decisions_kept_bytes", "Memory of kept decisions, as counted against their bound.")
    n_bytes.add_metric([], log.size_bytes)
    yield from (kept, n_bytes)
