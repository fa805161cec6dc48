"""Reconciliation of the fleet with the endpoints of a configuration or of discovery."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from ..configs.endpoints import EndpointAddresses, endpoint_addresses
from ..configs.schema import KVAtlasConfig
from ..events.errors import SubscriptionError
from ..indexer.snapshot import SavedEndpoint
from .errors import ConfigRefusedError
from .fleet import Fleet

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Desired state of one endpoint.

    Attributes:
        addresses: where it serves requests and publishes events.
        labels: free labels.
        uid: uid of its pod, which changes if a pod is created again under its name; empty for a configured endpoint.
    """

    addresses: EndpointAddresses
    labels: Mapping[str, str]
    uid: str = ""


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """Changes from one set of endpoints to another.

    Attributes:
        new: endpoints to add.
        moved: endpoints with other addresses or another pod; removed, then added, so that nothing of the old ones stays.
        rescraped: new addresses of endpoints that differ in the URL of their metrics alone, and otherwise stay.
        gone: names of endpoints to remove.
        relabelled: new labels of endpoints that otherwise stay.
        before: former state of every endpoint in `moved` or `gone`.
    """

    new: Mapping[str, Wanted]
    moved: Mapping[str, Wanted]
    rescraped: Mapping[str, EndpointAddresses]
    gone: tuple[str, ...]
    relabelled: Mapping[str, Mapping[str, str]]
    before: Mapping[str, Wanted]


def wanted_endpoints(config: KVAtlasConfig) -> dict[str, Wanted]:
    """Return the endpoints of a configuration by name. Cost: 20 us per endpoint."""
    return dict(each_wanted(config))


def each_wanted(config: KVAtlasConfig) -> Iterator[tuple[str, Wanted]]:
    """Yield name and desired state of the endpoints of a configuration."""
    for endpoint in config.endpoints.static:
        yield (
            endpoint.name,
            Wanted(endpoint_addresses(endpoint, config.events, config.metrics_scrape), endpoint.labels),
        )


class Roster:
    """The endpoints of one source, a configuration or discovery, in the fleet.

    Each source has its own roster of a shared fleet; a name belongs to one source.

    Args:
        fleet: gets the endpoints.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._wanted: dict[str, Wanted] = {}
        self._hidden: set[str] = set()

    @property
    def wanted(self) -> Mapping[str, Wanted]:
        """Endpoints of the source that the fleet has, by name; a live view."""
        return self._wanted

    def add(self, name: str, wanted: Wanted, *, saved: SavedEndpoint | None = None) -> None:
        """Add an endpoint that the fleet does not have, restored from `saved` if that is given.

        Raises:
            SubscriptionError: as `Fleet.add`.
        """
        self._fleet.add(name, wanted.addresses, wanted.labels, saved=saved)
        self._wanted[name] = wanted

    def preparing(self, wanted: Mapping[str, Wanted]) -> Iterator[None]:
        """Connect to the publishers that `bring_to` would add; other tasks may run between the steps.

        Raises:
            ConfigRefusedError: an event address cannot be used.
        """
        plan = plan_fleet(self._wanted, wanted)
        for name, each in (*plan.new.items(), *plan.moved.items()):
            try:
                yield from self._fleet.subscriptions.preparing(each.addresses)
            except SubscriptionError as error:
                raise ConfigRefusedError(f"endpoint {name!r}: {error}") from error

    def taking_in(self, wanted: Mapping[str, Wanted]) -> Generator[None]:
        """Add the endpoints that `switch` would, hidden, one per step; other tasks may run between the steps.

        If one is refused, or the generator is closed before its end, the source has the endpoints of before.

        Raises:
            ConfigRefusedError: as `change`.
        """
        done: list[str] = []
        try:
            for name, each in plan_fleet(self._wanted, wanted).new.items():
                self.change({name: each}, hidden=True)
                done.append(name)
                yield
        except BaseException:
            self.change(dict.fromkeys(done))
            raise

    def switch(self, wanted: Mapping[str, Wanted]) -> list[str]:
        """Have the endpoints of `wanted` take requests and no others of the source, in one step.

        Args:
            wanted: endpoints by name; those that `taking_in` has added are only shown.
        Returns:
            names of endpoints that take no requests any more, to be removed with `change`.
        Raises:
            ConfigRefusedError: as `change`.
        Cost: O(endpoints) for a comparison each; more for those that move or are new.
        """
        hidden = [name for name in wanted if name in self._hidden]
        self.change(wanted)
        for name in hidden:
            self._fleet.show(name)
        self._hidden.difference_update(hidden)
        gone = [name for name in self._wanted if name not in wanted]
        for name in gone:
            self._fleet.hide(name)
        self._hidden.update(gone)  # shown again if they are wanted again before they are removed
        return gone

    def removing(self, names: Iterable[str]) -> Iterator[None]:
        """Remove endpoints, one per step; other tasks may run between the steps."""
        for name in names:
            self.change({name: None})
            yield

    def bring_to(
        self, wanted: Mapping[str, Wanted], *, saved: Mapping[str, SavedEndpoint] | None = None
    ) -> FleetPlan:
        """Add, move, relabel and remove endpoints until the source has those of `wanted`, in one step.

        `Fleet.release` then frees the sockets of removed endpoints.

        Args:
            wanted: endpoints by name.
            saved: state to restore for new endpoints, by name.
        Returns:
            the changes.
        Raises:
            ConfigRefusedError: an event address cannot be used, or another source owns a name; see `carry_out`.
        """
        gone = (name for name in self._wanted if name not in wanted)
        return self.change({**dict.fromkeys(gone), **wanted}, saved=saved)

    def change(
        self,
        changes: Mapping[str, Wanted | None],
        *,
        saved: Mapping[str, SavedEndpoint] | None = None,
        hidden: bool = False,
    ) -> FleetPlan:
        """Add, move, relabel and remove some endpoints, in one step; see `bring_to`.

        Args:
            changes: their states by name; None for one to remove. Endpoints that it does not name stay.
            saved: state to restore for new endpoints, by name.
            hidden: whether new endpoints take no requests until `switch`.
        Returns:
            the changes.
        Raises:
            ConfigRefusedError: as `bring_to`.
        Cost: O(changes).
        """
        old = {name: self._wanted[name] for name in changes if name in self._wanted}
        plan = plan_fleet(old, {name: each for name, each in changes.items() if each is not None})
        carry_out(plan, self._fleet, saved, hidden=hidden)
        if hidden:
            self._hidden.update(plan.new)
        for name in plan.gone:
            del self._wanted[name]
            self._hidden.discard(name)
        self._wanted.update((name, each) for name, each in changes.items() if each is not None)
        return plan


def plan_fleet(old: Mapping[str, Wanted], new: Mapping[str, Wanted]) -> FleetPlan:
    """Return the changes from the endpoints `old` to the endpoints `new`."""
    both = old.keys() & new.keys()
    moved = {name for name in both if _is_another(old[name], new[name])}
    return FleetPlan(
        new={name: each for name, each in new.items() if name not in old},
        moved={name: new[name] for name in sorted(moved)},
        rescraped={
            name: new[name].addresses
            for name in sorted(both - moved)
            if old[name].addresses != new[name].addresses
        },
        gone=tuple(name for name in old if name not in new),
        relabelled={
            name: new[name].labels for name in sorted(both - moved) if old[name].labels != new[name].labels
        },
        before={name: each for name, each in old.items() if name in moved or name not in new},
    )


def _is_another(one: Wanted, other: Wanted) -> bool:
    """Return whether two states of an endpoint are of different servers, or of different streams of events."""
    if one.addresses == other.addresses or one.uid != other.uid:  # usual
        return one.uid != other.uid
    return replace(one.addresses, metrics=None) != replace(other.addresses, metrics=None)


def carry_out(
    plan: FleetPlan, fleet: Fleet, saved: Mapping[str, SavedEndpoint] | None = None, *, hidden: bool = False
) -> None:
    """Apply the changes to the fleet in one step; `fleet.release` then frees sockets.

    New endpoints are added first, so that nothing else has changed if one is refused.

    Raises:
        ConfigRefusedError: an event address cannot be used, or a name belongs to a registered instance. The fleet is
            as before, but endpoints in `moved` start empty.
    """
    taken = [name for name in plan.new if fleet.get(name) is not None]
    if taken:
        raise ConfigRefusedError(
            f"endpoint {taken[0]!r} exists already, registered as an instance or discovered; "
            "remove that one, or give this one another name"
        )
    added: list[str] = []
    try:
        _add(plan.new, fleet, added, saved, hidden=hidden)
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
    for name, addresses in plan.rescraped.items():
        fleet.rescrape(name, addresses)


def _add(
    endpoints: Mapping[str, Wanted],
    fleet: Fleet,
    added: list[str],
    saved: Mapping[str, SavedEndpoint] | None = None,
    *,
    hidden: bool = False,
) -> None:
    for name, each in endpoints.items():
        added.append(name)
        fleet.add(name, each.addresses, each.labels, saved=saved.get(name) if saved else None, hidden=hidden)


def _restore(endpoints: Mapping[str, Wanted], fleet: Fleet) -> None:
    for name, each in endpoints.items():
        if fleet.get(name) is None:
            try:
                fleet.add(name, each.addresses, each.labels)
            except SubscriptionError as error:
                log.warning(
                    "endpoint %s gets requests, but its events cannot be followed again: %s", name, error
                )
