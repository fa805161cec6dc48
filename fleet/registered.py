"""Instances that clients register and unregister at run time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..configs.endpoints import EndpointAddresses, RankAddresses
from ..events.errors import SubscriptionError
from .errors import AlreadyRegisteredError, NotRegisteredError, TooManyRegisteredError
from .fleet import Fleet
from .instance import Instance

STORES = frozenset({"mooncake"})
"""Kinds of publishers that are stores, in lower case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """One registered publisher: one data-parallel rank of an instance.

    Attributes:
        instance: instance of the rank.
        given_id: id of the instance as the client wrote it.
        addresses: rank, PUB address and replay address.
        block_size: tokens per block according to the client; the index uses the block size in the events, if they tell one.
        engine: kind of publisher, such as `vLLM`; for display.
        lora: adapter named by the client; for display, since events name their adapter.
    """

    instance: Instance
    given_id: int | str = field(compare=False)
    addresses: RankAddresses
    block_size: int
    engine: str | None = field(default=None, compare=False)
    lora: str | None = None

    @property
    def is_store(self) -> bool:
        """Whether the publisher is a store that several engines fill; its events may tell no block size."""
        return (self.engine or "").lower() in STORES


class Registry:
    """Registered instances, each with an endpoint in the fleet.

    A registered instance has no serving address: it is followed, matched and shown as any endpoint, but no request is
    routed to it.

    Args:
        fleet: gets the endpoints.
        max_ranks: bound on the registered ranks of all instances, each of which takes sockets.
    """

    def __init__(self, fleet: Fleet, *, max_ranks: int) -> None:
        self._fleet, self._max_ranks = fleet, max_ranks
        self._ranks: dict[str, dict[int, Registration]] = {}

    def of(self, endpoint: str) -> Mapping[int, Registration]:
        """Return the registrations of an endpoint by rank; empty for configured endpoints."""
        return self._ranks.get(endpoint, {})

    @property
    def models(self) -> frozenset[str]:
        """Models of registered instances."""
        return frozenset(model for e in self._fleet if (model := e.instance.model) is not None)

    def registrations(self) -> list[Registration]:
        """Return all registrations."""
        return [each for ranks in self._ranks.values() for each in ranks.values()]

    def check(self, registration: Registration) -> None:
        """Check whether a registration that does not exist can be added, but for its sockets.

        Raises:
            AlreadyRegisteredError: the instance or rank exists with different data.
            TooManyRegisteredError: `max_ranks` are registered.
        """
        self._check(registration)
        if sum(map(len, self._ranks.values())) >= self._max_ranks:
            raise TooManyRegisteredError(
                f"{self._max_ranks} ranks are registered, which is rest.maxRegistered or what half of the open files "
                "allow (ulimit -n); unregister some that are gone, or raise the limit"
            )

    async def register(self, registration: Registration) -> bool:
        """Follow a publisher; return False if the same registration exists.

        Raises:
            AlreadyRegisteredError: the instance or rank exists with different data.
            TooManyRegisteredError: `max_ranks` are registered.
            SubscriptionError: ZMQ cannot use an address, or there are too many sockets; nothing is added.
        """
        name, rank = registration.instance.endpoint, registration.addresses
        ranks = self._ranks.get(name, {})
        if ranks.get(rank.rank) == registration:
            return False
        self.check(registration)
        if ranks:
            self._fleet.add_rank(name, rank)
        else:
            await self._add(registration)
        self._ranks.setdefault(name, {})[rank.rank] = registration
        if registration.is_store:
            ledger = self._fleet.atlas.ledger(name, rank.rank)
            ledger.is_store = True
            ledger.use_block_size(registration.block_size)
        return True

    async def unregister(self, tenant: str, name: str, rank: int | None) -> list[Registration]:
        """Remove a rank of an instance, or every rank if `rank` is None; return the removed registrations.

        Raises:
            NotRegisteredError: the instance or rank is not registered.
        """
        removed = self.find(tenant, name, rank)
        endpoint = Instance(name, tenant).endpoint
        ranks = self._ranks[endpoint]
        for registration in removed:
            del ranks[registration.addresses.rank]
        if ranks:
            await self._fleet.remove_rank(endpoint, removed[0].addresses.rank)
        else:
            del self._ranks[endpoint]
            await self._fleet.remove(endpoint)
        return removed

    def find(self, tenant: str, name: str, rank: int | None) -> list[Registration]:
        """Return the registration of a rank of an instance, or of every rank if `rank` is None.

        Raises:
            NotRegisteredError: the instance or rank is not registered.
        """
        endpoint = Instance(name, tenant).endpoint
        ranks = self._ranks.get(endpoint, {})
        found = [
            registration
            for registration in ranks.values()
            if (registration.instance.tenant, registration.instance.name) == (tenant, name)
            and rank in (None, registration.addresses.rank)
        ]
        if not found:
            which = "" if rank is None else f"rank {rank} of "
            raise NotRegisteredError(
                f"{which}instance {name!r} of tenant {tenant!r} was not registered; "
                "GET /workers lists what is, and configured endpoints are removed from the configuration"
            )
        return found

    async def _add(self, registration: Registration) -> None:
        name = registration.instance.endpoint
        addresses = EndpointAddresses(serving=None, metrics=None, ranks=(registration.addresses,))
        try:
            self._fleet.add(name, addresses, {}, instance=registration.instance)
        except SubscriptionError:
            await self._fleet.remove(name)
            raise

    def _check(self, registration: Registration) -> None:
        """Raise AlreadyRegisteredError unless the rank is new and fits its instance."""
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
