"""Answers over REST of one replica among several: changes hold on all of them."""

from __future__ import annotations

from collections.abc import Mapping

from ...api.rest.answers import PageQuery
from ...api.rest.audit_models import AuditOut
from ...api.rest.decision_models import DecisionsOut
from ...api.rest.explanation import Explained
from ...api.rest.models import ChangedOut, ReplicaGenerationOut, ResetOut, WeightsOut
from ...configs.section import PolicyName
from ...routing.plan.capacities import with_capacities
from ...routing.plan.live import LiveConfig
from ...routing.plan.rest_changes import CAPACITY, POLICY, SHADOW, WEIGHT
from ...routing.plan.weights import weights_of
from .configuration import Agreed, SharedConfiguration
from .gathered import Gathered


class ReplicaAnswers:
    """Implements `rest.answers.Answers`.

    Args:
        gathered: answers of all replicas together.
        live: its configuration.
        shared: its configuration among those of its siblings.
    """

    def __init__(self, gathered: Gathered, live: LiveConfig, shared: SharedConfiguration) -> None:
        self._gathered, self._live, self._shared = gathered, live, shared

    async def decisions(self, query: PageQuery) -> DecisionsOut:
        """See `Answers.decisions`."""
        return await self._gathered.decisions(query)

    async def decision(self, request_id: str) -> Explained | None:
        """See `Answers.decision`."""
        return await self._gathered.decision(request_id)

    async def audit(self) -> AuditOut:
        """See `Answers.audit`."""
        return await self._gathered.audit()

    async def reset(self, endpoint: str) -> ResetOut:
        """See `Answers.reset`."""
        return await self._gathered.reset(endpoint)

    async def set_weights(self, changed: Mapping[str, object], *, force: bool = False) -> WeightsOut:
        """See `Answers.set_weights`; nothing has changed on any replica if it raises."""
        self._live.plan_with(changed)  # refuses names and values, also under a policy that has no weights
        agreed = await self._shared.change(
            {f"{WEIGHT}{name}": value for name, value in changed.items()}, force=force
        )
        return WeightsOut(**dict(self._changed(agreed)), weights=weights_of(self._live.plan))

    async def set_capacities(self, changed: Mapping[str, object], *, force: bool = False) -> ChangedOut:
        """See `Answers.set_capacities`; nothing has changed on any replica if it raises."""
        with_capacities(self._live.loaded, self._live.in_force, changed)  # refuses names and values
        values = {f"{CAPACITY}{name}": value for name, value in changed.items()}
        return self._changed(await self._shared.change(values, force=force))

    async def set_policy(self, policy: PolicyName, *, force: bool = False) -> ChangedOut:
        """See `Answers.set_policy`; nothing has changed on any replica if it raises."""
        values = self._shared.agreement.word.changes.values
        has_plugins = bool(
            self._live.loaded.plugins
        )  # which the policy replaces, and their weights with them
        ended = [key for key in values if has_plugins and key.startswith(WEIGHT)]
        return self._changed(await self._shared.change({POLICY: policy}, ended=ended, force=force))

    async def set_shadow(self, policy: PolicyName | None, *, force: bool = False) -> ChangedOut:
        """See `Answers.set_shadow`; nothing has changed on any replica if it raises."""
        return self._changed(await self._shared.change({SHADOW: policy}, force=force))

    def _changed(self, agreed: Agreed) -> ChangedOut:
        agreement = self._shared.agreement
        words = [agreement.word, *sorted(agreement.words.values(), key=lambda word: word.name)]
        return ChangedOut(
            generation=self._live.generation,
            changes=[str(change) for change in agreed.changes],
            replicas=[
                ReplicaGenerationOut(
                    name=word.name, generation=word.generation, problem=agreed.behind.get(word.name)
                )
                for word in words
            ],
        )
