"""Instances that are added and removed at run time, beside the configured endpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..configs.endpoints import EndpointAddresses, RankAddresses
from ..events.errors import SubscriptionError
from .errors import AlreadyRegisteredError, NotRegisteredError
from .fleet import Fleet
from .instance import Instance


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """One publisher: one data-parallel rank of an instance.

    Attributes:
        instance: whose rank.
        given_id: the instance's id as the client wrote it.
        addresses: rank, PUB address and replay address.
        block_size: tokens a block, as the client says; the index goes by what the events show.
        engine: kind of publisher, such as `vLLM`, for people.
        lora: adapter named, for people: events name their adapter themselves.
    """

    instance: Instance
    given_id: int | str = field(compare=False)
    addresses: RankAddresses
    block_size: int
    engine: str | None = field(default=None, compare=False)
    lora: str | None = None


class Registry:
    """What clients registered, and the endpoints that stand for it.

    A registered instance has no serving address. It is followed, matched and shown as any endpoint, and no request is
    ever routed to it.

    Args:
        fleet: where the endpoints are.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._ranks: dict[str, dict[int, Registration]] = {}

    def of(self, endpoint: str) -> Mapping[int, Registration]:
        """What was registered under an endpoint's name, by rank; empty for configured endpoints."""
        return self._ranks.get(endpoint, {})

    @property
    def models(self) -> frozenset[str]:
        """Models of registered instances."""
        return frozenset(model for e in self._fleet if (model := e.instance.model) is not None)

    async def register(self, registration: Registration) -> bool:
        """Follow a publisher; False when it was registered in the same words before.

        Raises:
            AlreadyRegisteredError: the instance or rank is there already, as something else.
            SubscriptionError: an address that ZMQ cannot use, or too many sockets; nothing is left behind.
        """
        name, rank = registration.instance.endpoint, registration.addresses
        ranks = self._ranks.get(name, {})
        if ranks.get(rank.rank) == registration:
            return False
        self._check(registration)
        if ranks:
            self._fleet.add_rank(name, rank)
        else:
            await self._add(registration)
        self._ranks.setdefault(name, {})[rank.rank] = registration
        return True

    async def unregister(self, tenant: str, name: str, rank: int | None) -> list[Registration]:
        """Stop following a rank of an instance, or with None every rank, and forget all of it; returns what was removed.

        Raises:
            NotRegisteredError: no such instance or rank was registered.
        """
        endpoint = Instance(name, tenant).endpoint
        ranks = self._ranks.get(endpoint, {})
        removed = [
            registration
            for registration in ranks.values()
            if (registration.instance.tenant, registration.instance.name) == (tenant, name)
            and rank in (None, registration.addresses.rank)
        ]
        if not removed:
            which = "" if rank is None else f"rank {rank} of "
            raise NotRegisteredError(
                f"{which}instance {name!r} of tenant {tenant!r} was not registered; "
                "GET /workers lists what is, and configured endpoints are removed from the configuration"
            )
        for registration in removed:
            del ranks[registration.addresses.rank]
        if ranks:
            await self._fleet.remove_rank(endpoint, removed[0].addresses.rank)
        else:
            del self._ranks[endpoint]
            await self._fleet.remove(endpoint)
        return removed

    async def _add(self, registration: Registration) -> None:
        name = registration.instance.endpoint
        addresses = EndpointAddresses(serving=None, metrics=None, ranks=(registration.addresses,))
        try:
            self._fleet.add(name, addresses, {}, instance=registration.instance)
        except SubscriptionError:
            await self._fleet.remove(name)
            raise

    def _check(self, registration: Registration) -> None:
        """Nothing when the rank is new and fits what else is known of its instance."""
        instance, rank = registration.instance, registration.addresses.rank
        there = self._fleet.get(instance.endpoint)
        if there is None:
            return
        who = f"instance {instance.name!r} of tenant {instance.tenant!r}"
        known = self.of(there.name)
        if not known:
            raise AlreadyRegisteredError(
                f"{who} cannot be registered: endpoint {there.name!r} is configured; use another instance_id"
            )
        if there.instance != instance:
            other = there.instance
            raise AlreadyRegisteredError(
                f"{who} cannot be registered for model {instance.model!r} with salt {instance.salt!r}: "
                f"endpoint {there.name!r} is registered as instance {other.name!r} of tenant {other.tenant!r} "
                f"for model {other.model!r} with salt {other.salt!r}; unregister that first"
            )
        if rank in known:
            of_rank = known[rank]
            raise AlreadyRegisteredError(
                f"rank {rank} of {who} is registered already, with endpoint {of_rank.addresses.events}, "
                f"replay_endpoint {of_rank.addresses.replay}, block_size {of_rank.block_size} and "
                f"lora_name {of_rank.lora}; unregister it first"
            )
