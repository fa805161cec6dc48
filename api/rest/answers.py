"""REST answers on decisions, audit and weights: of this process alone, or of several together."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from ...configs.changes import Change
from ...configs.section import PolicyName
from ...events.stream import Trust
from ...fleet.audit import EndpointAudit
from ...fleet.fleet import Fleet
from ...routing.decision_log import DecisionLog
from ...routing.plan.live import LiveConfig
from ...routing.plan.weights import weights_of
from .audit_models import AuditOut, EndpointAuditOut
from .decision_models import DecisionsOut, DecisionSummaryOut
from .explanation import Explained, explained, summary
from .models import ChangedOut, ResetOut, WeightsOut


class PageQuery(NamedTuple):
    """Selection of a page of decisions.

    Attributes:
        limit: largest number of decisions.
        endpoint: only those that picked this endpoint first; None for all.
        before: only those with a smaller number; None for all.
    """

    limit: int
    endpoint: str | None = None
    before: int | None = None


class Numbered(NamedTuple):
    """A decision's summary with its sequence number."""

    number: int
    decision: DecisionSummaryOut


class Answers(Protocol):
    """Answers to calls that concern all processes of one kvatlas."""

    async def decisions(self, query: PageQuery) -> DecisionsOut:
        """Return the last decisions, newest first."""
        ...

    async def decision(self, request_id: str) -> Explained | None:
        """Return the newest decision on a request of that id, None if it is not kept."""
        ...

    async def audit(self) -> AuditOut:
        """Return expected and reused tokens by endpoint."""
        ...

    async def reset(self, endpoint: str) -> ResetOut:
        """Forget all that an endpoint holds, and learn it again; the endpoint is known here."""
        ...

    async def set_weights(self, changed: Mapping[str, object], *, force: bool = False) -> WeightsOut:
        """Change weights.

        Args:
            changed: name -> weight.
            force: put it in force here although a replica refuses it or is silent; it follows when it can.

        Raises:
            ConfigError: a name or value is impossible; nothing has changed.
            ConfigRefusedError: it cannot be put in force; nothing has changed.
        """
        ...

    async def set_capacities(self, changed: Mapping[str, object], *, force: bool = False) -> ChangedOut:
        """Change capacities: name of a tier -> blocks, `auto` or `unlimited`. Raises as `set_weights`."""
        ...

    async def set_policy(self, policy: PolicyName, *, force: bool = False) -> ChangedOut:
        """Change the policy.

        Raises:
            ConfigRefusedError: it cannot be put in force; nothing has changed.
        """
        ...

    async def set_shadow(self, policy: PolicyName | None, *, force: bool = False) -> ChangedOut:
        """Change the policy that decides without effect; None for none."""
        ...


class OwnAnswers:
    """Implements `Answers` for a single process.

    Args:
        log: its decisions.
        fleet: its endpoints.
        live: its configuration.
    """

    def __init__(self, log: DecisionLog, fleet: Fleet, live: LiveConfig) -> None:
        self._log, self._fleet, self._live = log, fleet, live

    @property
    def generation(self) -> int:
        """Generation of the configuration in force."""
        return self._live.generation

    def newest(self, query: PageQuery) -> list[Numbered]:
        """Return summaries of decisions, newest first."""
        found = self._log.page(limit=query.limit, endpoint=query.endpoint, before=query.before)
        return [Numbered(kept.number, summary(kept)) for kept in found]

    async def decisions(self, query: PageQuery) -> DecisionsOut:
        """See `Answers.decisions`."""
        return page_of(self.newest(query._replace(limit=query.limit + 1)), query.limit)

    async def decision(self, request_id: str) -> Explained | None:
        """See `Answers.decision`."""
        kept = self._log.get(request_id)
        return explained(kept) if kept is not None else None

    async def audit(self) -> AuditOut:
        """See `Answers.audit`."""
        now = time.monotonic()
        books = ((endpoint.name, self._fleet.audit.of(endpoint.name)) for endpoint in self._fleet)
        return AuditOut(endpoints=[_audited(name, each, now) for name, each in books if each is not None])

    async def reset(self, endpoint: str) -> ResetOut:
        """See `Answers.reset`."""
        n_blocks = sum(tier.residencies for tier in self._fleet.atlas.occupancy(endpoint))
        self._fleet.reset(endpoint)
        found = self._fleet.get(endpoint)
        ranks = found.ranks if found is not None else ()
        replaying = [each.number for each in ranks if each.trust is Trust.REPLAYING]
        return ResetOut(endpoint=endpoint, forgotten=n_blocks, replaying=replaying)

    def knows(self, endpoint: str) -> bool:
        """Return whether there is an endpoint of that name."""
        return self._fleet.get(endpoint) is not None

    async def set_weights(self, changed: Mapping[str, object], *, force: bool = False) -> WeightsOut:  # noqa: ARG002 - there are no replicas
        """See `Answers.set_weights`."""
        found = _changed(self._live, await self._live.set_weights(changed))
        return WeightsOut(**dict(found), weights=weights_of(self._live.plan))

    async def set_capacities(self, changed: Mapping[str, object], *, force: bool = False) -> ChangedOut:  # noqa: ARG002
        """See `Answers.set_capacities`."""
        return _changed(self._live, await self._live.set_capacities(changed))

    async def set_policy(self, policy: PolicyName, *, force: bool = False) -> ChangedOut:  # noqa: ARG002
        """See `Answers.set_policy`."""
        return _changed(self._live, await self._live.set_policy(policy))

    async def set_shadow(self, policy: PolicyName | None, *, force: bool = False) -> ChangedOut:  # noqa: ARG002
        """See `Answers.set_shadow`."""
        return _changed(self._live, await self._live.set_shadow(policy))


def _changed(live: LiveConfig, found: list[Change]) -> ChangedOut:
    return ChangedOut(generation=live.generation, changes=[str(change) for change in found])


def page_of(found: list[Numbered], limit: int, missing_replicas: Sequence[str] = ()) -> DecisionsOut:
    """Return the first `limit` of `found`, newest first; one more in `found` means that there is a next page."""
    page = found[:limit]
    return DecisionsOut(
        decisions=[each.decision for each in page],
        next_cursor=page[-1].number if len(found) > limit else None,
        missing_replicas=list(missing_replicas),
    )


def _audited(name: str, books: EndpointAudit, now: float) -> EndpointAuditOut:
    return EndpointAuditOut(
        name=name,
        requests=sum(books.verdicts.values()),
        verdicts={verdict.value: count for verdict, count in books.verdicts.items()},
        expected_tokens=books.expected.copy(),
        reused_tokens=books.reused.copy(),
        over_tokens=books.over_tokens,
        under_tokens=books.under_tokens,
        credit=books.credit(now),
    )
