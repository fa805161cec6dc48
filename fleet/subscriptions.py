"""The event streams of the fleet's endpoints: followed into the atlas, and left."""

from __future__ import annotations

import time
from collections.abc import Iterator

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
from .rank import Publisher


class Publishers:
    """Follows the publisher of each rank, until it is left.

    Args:
        subscriber: receives their events.
        atlas: takes what they say.
        predictions: what their events replace.
        metrics: counters.
    """

    def __init__(
        self, subscriber: Subscriber, *, atlas: Atlas, predictions: Predictions, metrics: FleetMetrics
    ) -> None:
        self._subscriber, self._atlas = subscriber, atlas
        self._predictions, self._metrics = predictions, metrics
        self._left: list[Subscription] = []

    def preparing(self, addresses: EndpointAddresses) -> Iterator[None]:
        """Connect to the publishers of an endpoint that is about to be added, in steps between which others may run.

        `prepared` is to be called when it has been added, or will not be.

        Raises:
            SubscriptionError: as `follow`.
        """
        if addresses.connects_to_us:
            return iter(())
        return self._subscriber.prepare(rank.events for rank in addresses.ranks if rank.events is not None)

    def prepared(self) -> None:
        """Close what `preparing` opened and nobody took."""
        self._subscriber.discard_prepared()

    def follow(self, endpoint: Endpoint, rank: RankAddresses, saved: SavedRank | None) -> None:
        """Add a rank to an endpoint that is in the atlas, from what was saved of it or from nothing.

        Raises:
            SubscriptionError: an event address that cannot be used; the rank is not added.
        """
        name = endpoint.name
        publisher = Publisher(name, rank.rank, self._atlas, self._predictions, self._metrics)
        self._atlas.add_rank(name, rank.rank)
        if saved is not None:
            self._atlas.load(name, rank.rank, saved.books, now=time.monotonic())
        position = saved.position if saved is not None else None
        try:
            publisher.subscription = self._subscribe(endpoint.addresses, rank, publisher, position)
        except SubscriptionError:
            self._atlas.remove_rank(name, rank.rank)
            raise
        endpoint.publishers.append(publisher)
        if publisher.subscription is None:
            self._atlas.ledger(name, rank.rank).without_events()

    def leave(self, publisher: Publisher) -> None:
        """Stop following, at once: queued events do not come any more. `release` frees the sockets."""
        if publisher.subscription is not None:
            self._subscriber.stop(publisher.subscription)
            self._left.append(publisher.subscription)

    async def release(self) -> None:
        """Free the sockets of publishers that were left."""
        while self._left:
            await self._subscriber.unsubscribe(self._left.pop())

    def _subscribe(
        self,
        addresses: EndpointAddresses,
        rank: RankAddresses,
        publisher: Publisher,
        position: StreamPosition | None,
    ) -> Subscription | None:
        if rank.events is None:
            return None
        if addresses.connects_to_us and addresses.serving is not None:
            expected = BoundPublisher(publisher.endpoint, addresses.serving, rank.rank)
            return self._subscriber.expect(expected, rank.replay, publisher, position)
        return self._subscriber.subscribe(rank.events, rank.replay, publisher, position)
