"""From a decision to its route: addresses, bookings, and what is predicted of the endpoint."""

from __future__ import annotations

import heapq

from ..fleet.fleet import Fleet
from ..indexer.prefix import Prefix
from ..scorers.core.base import Rng
from ..scorers.core.decision import Decision
from ..scorers.core.model import RequestView
from ..scorers.core.shadow import Repeat
from .policy import Policy
from .priority import prioritized
from .records import Records
from .router import ModelRewrite, Route


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
            policy: made the decision, and its plugins learn from it.
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
        return Route(
            self._addresses(decision),
            decision,
            headers,
            self._fleet.in_flight.book(
                best.name, tokens=best.uncached_tokens(view) + view.output_tokens, now=view.now
            ),
            rewrite,
            prediction,
            self._records.routed(view, decision, prefix, repeat),
            reporters=policy.requests.reporters,
        )

    def _addresses(self, decision: Decision) -> tuple[str, ...]:
        """Return the addresses of the picked endpoints, then of the next best as fallbacks."""
        if len(decision.picked) == 1:
            picked: tuple[str, ...] = (decision.best.address,)
        else:
            addresses = dict(zip(decision.kept_names, decision.kept_addresses, strict=True))
            picked = tuple(addresses[name] for name in decision.picked)
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
