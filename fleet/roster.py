"""The fleet brought to the endpoints that a configuration or a discovery wants."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..configs.endpoints import EndpointAddresses, endpoint_addresses
from ..configs.schema import KVAtlasConfig
from ..events.errors import SubscriptionError
from ..indexer.snapshot import SavedEndpoint
from .errors import ConfigRefusedError
from .fleet import Fleet

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Wanted:
    """An endpoint as its source has it.

    Attributes:
        addresses: where it serves and publishes.
        labels: free labels.
        uid: of the pod behind it; empty for an endpoint that somebody configured.
    """

    addresses: EndpointAddresses
    labels: Mapping[str, str]
    uid: str = ""


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """What brings a fleet from one list of endpoints to another.

    Attributes:
        new: endpoints that come.
        moved: endpoints that have other addresses: removed, then added, so that nothing of the old ones stays.
        gone: names of endpoints that go.
        relabelled: endpoints with other labels, which keep all they have.
        before: every endpoint that is moved or gone, as it was.
    """

    new: Mapping[str, Wanted]
    moved: Mapping[str, Wanted]
    gone: tuple[str, ...]
    relabelled: Mapping[str, Mapping[str, str]]
    before: Mapping[str, Wanted]


def wanted_endpoints(config: KVAtlasConfig) -> dict[str, Wanted]:
    """A configuration's endpoints by name."""
    return {
        endpoint.name: Wanted(endpoint_addresses(endpoint, config.events), endpoint.labels)
        for endpoint in config.endpoints.static
    }


class Roster:
    """The endpoints of one source, a configuration or a discovery, as the fleet has them.

    Sources share a fleet, each with a roster of its own; a name belongs to one of them.

    Args:
        fleet: where the endpoints are.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._wanted: dict[str, Wanted] = {}

    @property
    def wanted(self) -> Mapping[str, Wanted]:
        """Endpoints of the source by name, as they change."""
        return self._wanted

    def add(self, name: str, wanted: Wanted, *, saved: SavedEndpoint | None = None) -> None:
        """Add one endpoint that the fleet does not have, from what was saved of it or from nothing.

        Raises:
            SubscriptionError: as `Fleet.add`.
        """
        self._fleet.add(name, wanted.addresses, wanted.labels, saved=saved)
        self._wanted[name] = wanted

    def preparing(self, wanted: Mapping[str, Wanted]) -> Iterator[None]:
        """Do what of `bring_to` takes long and changes nothing, in steps between which others may run.

        Raises:
            ConfigRefusedError: an event address cannot be used.
        """
        plan = plan_fleet(self._wanted, wanted)
        for name, each in (*plan.new.items(), *plan.moved.items()):
            try:
                yield from self._fleet.subscriptions.preparing(each.addresses)
            except SubscriptionError as error:
                raise ConfigRefusedError(f"endpoint {name!r}: {error}") from error

    def bring_to(
        self, wanted: Mapping[str, Wanted], *, saved: Mapping[str, SavedEndpoint] | None = None
    ) -> FleetPlan:
        """Add, move, relabel and remove endpoints until the source's are those of `wanted`, in one step.

        Returns what was done; `Fleet.release` frees the sockets of what has gone.

        Args:
            wanted: endpoints by name.
            saved: what new ones among them go on from.
        Raises:
            ConfigRefusedError: an event address cannot be used, or a name belongs to somebody else; see `carry_out`.
        """
        plan = plan_fleet(self._wanted, wanted)
        carry_out(plan, self._fleet, saved)
        for name in plan.gone:
            del self._wanted[name]
        self._wanted.update(wanted)
        return plan


def plan_fleet(old: Mapping[str, Wanted], new: Mapping[str, Wanted]) -> FleetPlan:
    """What brings a fleet with the endpoints `old` to the endpoints `new`."""
    both = old.keys() & new.keys()
    moved = {name for name in both if old[name].addresses != new[name].addresses}
    return FleetPlan(
        new={name: each for name, each in new.items() if name not in old},
        moved={name: new[name] for name in sorted(moved)},
        gone=tuple(name for name in old if name not in new),
        relabelled={
            name: new[name].labels for name in sorted(both - moved) if old[name].labels != new[name].labels
        },
        before={name: each for name, each in old.items() if name in moved or name not in new},
    )


def carry_out(plan: FleetPlan, fleet: Fleet, saved: Mapping[str, SavedEndpoint] | None = None) -> None:
    """Bring the fleet where the plan says, in one step; `fleet.release` frees what has gone.

    New endpoints come first: where they cannot, nothing else has been touched.

    Raises:
        ConfigRefusedError: an event address cannot be used, or a name belongs to a registered instance; the fleet is as
            before, but for endpoints that were to move, which start over.
    """
    taken = [name for name in plan.new if fleet.get(name) is not None]
    if taken:
        raise ConfigRefusedError(
            f"endpoint {taken[0]!r} is there already, registered as an instance or discovered; "
            "remove that one, or give this one another name"
        )
    added: list[str] = []
    try:
        _add(plan.new, fleet, added, saved)
        for name in plan.before:
            fleet.forget(name)
        _add(plan.moved, fleet, added)
    except SubscriptionError as error:
        for name in added:
            fleet.forget(name)
        _restore(plan.before, fleet)
        raise ConfigRefusedError(f"endpoint {added[-1]!r}: {error}") from error
    for name, labels in plan.relabelled.items():
        fleet.relabel(name, labels)


def _add(
    endpoints: Mapping[str, Wanted],
    fleet: Fleet,
    added: list[str],
    saved: Mapping[str, SavedEndpoint] | None = None,
) -> None:
    for name, each in endpoints.items():
        added.append(name)
        fleet.add(name, each.addresses, each.labels, saved=saved.get(name) if saved else None)


def _restore(endpoints: Mapping[str, Wanted], fleet: Fleet) -> None:
    for name, each in endpoints.items():
        if fleet.get(name) is None:
            try:
                fleet.add(name, each.addresses, each.labels)
            except SubscriptionError as error:
                log.warning(
                    "endpoint %s is routed to, but its events cannot be followed again: %s", name, error
                )
