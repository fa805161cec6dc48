"""From a decision to its route: addresses, bookings, and what is predicted of the endpoint."""

from __future__ import annotations

import heapq

from ..fleet.fleet import Fleet
from ..indexer.prefix import Prefix
from ..scorers.core.base import Rng
from ..scorers.core.decision import PREFILL, Decision, Stage
from ..scorers.core.model import RequestView
from ..scorers.core.shadow import Repeat
from .policy import Policy
from .priority import prioritized
from .records import Records
from .router import NO_HEADERS, ModelRewrite, Part, Route


class Dispatcher:
    """Books requests on the endpoints that were picked for them.

    Args:
        fleet: endpoints.
        records: counts faults of plugins, and passes routes on to observers.
        rng: uniform draws that order equal fallbacks.
        n_fallbacks: endpoints named after the picked ones.
    """

    def __init__(self, fleet: Fleet, records: Records, rng: Rng, n_fallbacks: int) -> None:
        self._fleet, self._records = fleet, records
        self._rng, self._n_fallbacks = rng, n_fallbacks

    def dispatch(
        self,
        policy: Policy,
        view: RequestView,
        prefix: Prefix | None,
        decision: Decision,
        rewrite: ModelRewrite | None,
        repeat: Repeat | None,
    ) -> Route:
        """Return the route of a decision, after booking it. There is no pause, so that no booking is lost.

        Args:
            policy: made the decision. Its plugins learn from it, and from the response to its end.
            view: the request as scorers saw it.
            prefix: block keys of its prompt, None if it has none.
            decision: on the request; at least one endpoint is picked.
            rewrite: what changes in the request, None if nothing does.
            repeat: what an observer needs to decide again, None if none does.
        """
        best, profile = decision.best, policy.profile
        if rewrite is not None and rewrite.has_priority:
            status = self._fleet.scrape_status(best.name)
            rewrite = prioritized(rewrite, decision, engine=(status.engine if status else None) or "")
        prediction = self._fleet.routed(best, prefix, now=view.now)
        faults = profile.picked(view, decision)
        headers, more_faults = profile.response_headers(decision)
        if faults or more_faults:
            self._records.count_faults(faults + more_faults)
        placement = decision.placement
        # With a prefill stage the tokens come from there instead of being computed, before the first byte all the same.
        booking = self._fleet.in_flight.book(
            best.name, tokens=best.computed_tokens(view) + view.output_tokens, now=view.now
        )
        arrival, shadow = self._records.routed(view, decision, prefix, repeat)
        return Route(
            self._addresses(decision),
            decision,
            headers or NO_HEADERS,
            booking,
            rewrite,
            prediction,
            arrival,
            placement.headers if placement is not None else NO_HEADERS,
            reporters=policy.requests.reporters,
            parts=tuple(self._part(each, view, prefix) for each in placement.stages)
            if placement is not None
            else (),
            profile=profile,
            shadow=shadow,
        )

    def _part(self, stage: Stage, view: RequestView, prefix: Prefix | None) -> Part:
        """Book the part of a request that another endpoint does than the one that answers."""
        best, computes = stage.decision.best, stage.name == PREFILL
        booking = self._fleet.in_flight.book(
            best.name, tokens=best.computed_tokens(view) if computes else 0, now=view.now
        )
        return Part(booking, self._fleet.routed(best, prefix, now=view.now) if computes else None)

    def _addresses(self, decision: Decision) -> tuple[str, ...]:
        """Return the addresses of the picked endpoints, then of the next best as fallbacks."""
        picked, placement = decision.picked_addresses, decision.placement
        if placement is not None and placement.port is not None:
            # The header names one rank, so no other address will do.
            return (f"{picked[0].rpartition(':')[0]}:{placement.port}",)
        if not self._n_fallbacks:
            return picked
        # Draws break ties, so that the load of a failing endpoint is spread over several others.
        others = (
            (total, self._rng(), address)
            for name, address, total in zip(
                decision.kept_names, decision.kept_addresses, decision.totals.tolist(), strict=True
            )
            if name not in decision.picked
        )
        return picked + tuple(address for _, _, address in heapq.nlargest(self._n_fallbacks, others))
