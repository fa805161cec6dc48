"""Subscriptions to the event streams of the fleet's ranks."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence

from ..configs.endpoints import EndpointAddresses, RankAddresses
from ..events.bound import BoundPublisher
from ..events.errors import SubscriptionError
from ..events.position import StreamPosition
from ..events.subscriber import Subscriber
from ..events.subscription import Subscription
from ..indexer.atlas import Atlas
from ..indexer.snapshot import SavedRank
from .endpoint import Endpoint
from .metrics import FleetMetrics
from .predictions import Predictions
from .rank import Rank
from .table import FleetTable

log = logging.getLogger(__name__)


class Subscriptions:
    """Subscribes each rank of the fleet to its publisher.

    Args:
        subscriber: owns the sockets.
        atlas: the index that events go into.
        predictions: confirmed by events.
        metrics: counters.
        table: shows the trust in the events of each rank.
    """

    def __init__(
        self,
        subscriber: Subscriber,
        *,
        atlas: Atlas,
        predictions: Predictions,
        metrics: FleetMetrics,
        table: FleetTable,
    ) -> None:
        self._subscriber, self._atlas = subscriber, atlas
        self._predictions, self._metrics, self._table = predictions, metrics, table
        self._left: list[Subscription] = []

    def preparing(self, addresses: EndpointAddresses) -> Iterator[None]:
        """Connect to the publishers of an endpoint that will be added; other tasks may run between the steps.

        Call `prepared` after the endpoint was added or refused.

        Raises:
            SubscriptionError: as `follow`.
        """
        if addresses.connects_to_us:
            return iter(())
        return self._subscriber.prepare(rank.events for rank in addresses.ranks if rank.events is not None)

    def prepared(self) -> None:
        """Close the connections that `preparing` opened and no endpoint took over."""
        self._subscriber.discard_prepared()

    def follow(self, endpoint: Endpoint, addresses: RankAddresses, saved: SavedRank | None) -> None:
        """Add a rank to an endpoint of the atlas, and subscribe to its events.

        Args:
            endpoint: gets the rank.
            addresses: number and addresses of the rank.
            saved: state to restore, None to start empty.
        Raises:
            SubscriptionError: an event address cannot be used; the rank is not added.
            ValueError: the endpoint has this rank.
        """
        name, number = endpoint.name, addresses.rank
        if endpoint.rank(number) is not None:  # the atlas would replace the ledger that the rank holds
            raise ValueError(f"endpoint {name!r} has rank {number} already")
        self._atlas.add_rank(name, number)
        ledger = self._atlas.ledger(name, number)
        ledger.tenant, ledger.own_salt = endpoint.instance.tenant, endpoint.instance.salt
        if saved is not None:
            ledger.load(saved.books, now=time.monotonic())
        rank = Rank(
            name, number, self._atlas, ledger, self._predictions, self._metrics, self._table.set_trust
        )
        position = saved.position if saved is not None else None
        try:
            rank.subscription = self._subscribe(endpoint, addresses, rank, position)
        except SubscriptionError:
            self._atlas.remove_rank(name, number)
            raise
        endpoint.ranks.append(rank)
        endpoint.use_drafter()
        self._table.set_trust(name, number, rank.subscription.trust if rank.subscription else None)
        if rank.subscription is None:
            ledger.without_events()

    def replace(self, endpoint: Endpoint, ranks: Sequence[RankAddresses]) -> None:
        """Follow other publishers in place of all ranks of an endpoint, which start empty; `release` frees the sockets.

        Raises:
            SubscriptionError: an event address cannot be used; the endpoint then has one rank without events, which learns
                from routing.
        """
        self._leave_all(endpoint)
        try:
            for addresses in ranks:
                self.follow(endpoint, addresses, None)
        except SubscriptionError:
            self._leave_all(endpoint)
            self.follow(endpoint, RankAddresses(0, None, None), None)
            raise

    def _leave_all(self, endpoint: Endpoint) -> None:
        for rank in endpoint.ranks:
            self.leave(rank)
            self._atlas.remove_rank(endpoint.name, rank.number)
        endpoint.ranks.clear()

    def leave(self, rank: Rank) -> None:
        """Unsubscribe a rank at once: queued events are dropped. `release` frees the sockets."""
        self._table.set_trust(rank.endpoint, rank.number, None)
        if rank.subscription is not None:
            self._subscriber.stop(rank.subscription)
            self._left.append(rank.subscription)

    async def release(self) -> None:
        """Free the sockets of ranks that were left."""
        while self._left:
            await self._subscriber.unsubscribe(self._left.pop())

    def _subscribe(
        self, endpoint: Endpoint, addresses: RankAddresses, rank: Rank, position: StreamPosition | None
    ) -> Subscription | None:
        if addresses.events is None:
            return None
        if endpoint.addresses.connects_to_us and endpoint.address is not None:
            expected = BoundPublisher(endpoint.name, endpoint.address, addresses.rank)
            return self._subscriber.expect(
                expected, addresses.replay, rank, position, snapshots=addresses.snapshots
            )
        return self._subscriber.subscribe(
            addresses.events, addresses.replay, rank, position, snapshots=addresses.snapshots
        )


def warn_of_port_collision(name: str, addresses: EndpointAddresses) -> None:
    """Warn if the event address of one rank is the replay address of another."""
    events, replays = ({getattr(rank, kind) for rank in addresses.ranks} for kind in ("events", "replay"))
    for address in sorted(events & replays - {None}):
        log.warning(
            "%s: %s is the event address of one rank and the replay address of another; set the two ports at least "
            "dataParallelSize apart, in the engine and here",
            name, address,
        )  # fmt: skip
