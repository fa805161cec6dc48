"""The ZMQ shell of the event plane: all subscriptions of a process, on one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterable, Iterator, Mapping

import zmq
import zmq.asyncio

from .admission import LOCAL, Access
from .bound import BoundPublisher, BoundSocket
from .byte_budget import ByteBudget
from .connected import ConnectedSource, Connection
from .errors import SubscriptionError
from .options import SubscriberOptions
from .position import StreamPosition
from .replay import ReplayServer
from .sink import EventSink
from .snapshot_server import SnapshotServer
from .subscription import Subscription
from .tasks import keep
from .turns import Turns


class Subscriber:
    """Subscriptions to any number of publishers: kvatlas connects to them (`subscribe`) or they to it (`expect`)."""

    def __init__(self, options: SubscriberOptions | None = None) -> None:
        self._options = options or SubscriberOptions()
        self._context = zmq.asyncio.Context()
        self._context.set(zmq.MAX_SOCKETS, self._options.max_sockets)
        self._turns = Turns()
        self._slots = asyncio.Semaphore(self._options.max_concurrent_replays)
        self._snapshot_slots = asyncio.Semaphore(self._options.max_concurrent_snapshots)
        self._replay_budget = ByteBudget.shared(
            self._options.replay_limits.max_queued_bytes, self._options.max_concurrent_replays
        )
        self._bound: BoundSocket | None = None
        self._subscriptions: set[Subscription] = set()
        self._prepared: dict[str, Connection] = {}
        """Connections opened ahead of `subscribe`, by address."""
        self._ticker: asyncio.Task[None] | None = None

    def bind(self, address: str, access: Access = LOCAL) -> str:
        """Listen for publishers that connect to kvatlas; at most once. Return the address as bound.

        Args:
            address: a local `tcp://HOST:PORT`, `tcp://*:PORT` for every interface, or `ipc://PATH`; port 0 takes a
                free port.
            access: who may connect.
        Raises:
            SubscriptionError: the address is in use, or does not belong to this machine.
        """
        self._bound = BoundSocket(self._context, self._turns, address, self._options, access)
        return self._bound.address

    @property
    def unrouted(self) -> Mapping[str, int]:
        """Messages on the bound socket from no known publisher, by reason."""
        return self._bound.unrouted if self._bound else {}

    @property
    def refused(self) -> Mapping[str, int]:
        """Connections to the bound socket that were refused, by reason."""
        return self._bound.refused if self._bound else {}

    def prepare(self, addresses: Iterable[str]) -> Iterator[None]:
        """Connect ahead of `subscribe`, one publisher per step, so that `subscribe` is cheap.

        Args:
            addresses: of their PUB sockets.
        Raises:
            SubscriptionError: as `subscribe`.
        """
        for address in addresses:
            if address not in self._prepared:
                self._prepared[address] = Connection(self._context, address, self._options)
            yield

    def discard_prepared(self) -> None:
        """Close the prepared connections that `subscribe` has not used."""
        while self._prepared:
            self._prepared.popitem()[1].close()

    def subscribe(
        self,
        events: str,
        replay: str | None,
        sink: EventSink,
        position: StreamPosition | None = None,
        *,
        snapshots: str | None = None,
    ) -> Subscription:
        """Subscribe to one publisher; the connection is made in the background.

        Args:
            events: address of its PUB socket, `tcp://HOST:PORT`.
            replay: address of its ROUTER socket, None if it has none.
            sink: receives the batches.
            position: state of an earlier subscription to continue from, None to start with its history.
            snapshots: address of its snapshot socket, None if it has none.
        Raises:
            SubscriptionError: ZMQ cannot use the address, or too many sockets are open.
        """
        connection = self._prepared.pop(events, None) or Connection(self._context, events, self._options)
        subscription = Subscription(
            events=events,
            replay=self._replay(replay),
            snapshots=self._snapshots(snapshots),
            sink=sink,
            turns=self._turns,
            options=self._options,
            position=position,
            sees_disconnects=True,
            open_source=lambda taker: ConnectedSource(connection, self._turns, events, self._options, taker),
        )
        return self._add(subscription)

    def expect(
        self,
        publisher: BoundPublisher,
        replay: str | None,
        sink: EventSink,
        position: StreamPosition | None = None,
        *,
        snapshots: str | None = None,
    ) -> Subscription:
        """Expect one publisher on the bound socket; its history is requested at once.

        Args:
            publisher: identifies it.
            replay: address of its ROUTER socket, None if it has none.
            sink: receives the batches.
            position: as for `subscribe`.
            snapshots: as for `subscribe`.
        Raises:
            SubscriptionError: no address is bound.
        """
        bound = self._bound
        if bound is None:
            raise SubscriptionError(f"cannot expect events of {publisher.endpoint!r}: bind an address first")
        subscription = Subscription(
            events=bound.address,
            replay=self._replay(replay),
            snapshots=self._snapshots(snapshots),
            sink=sink,
            turns=self._turns,
            options=self._options,
            position=position,
            sees_disconnects=False,
            open_source=lambda taker: bound.route(publisher, taker),
        )
        subscription.connected()
        return self._add(subscription)

    def stop(self, subscription: Subscription) -> None:
        """Pass nothing more of the publisher to its sink. `unsubscribe` also frees its sockets."""
        self._subscriptions.discard(subscription)
        subscription.stop()

    async def unsubscribe(self, subscription: Subscription) -> None:
        """Stop the subscription and close its sockets."""
        self.stop(subscription)
        await subscription.close()

    async def close(self) -> None:
        """Stop all subscriptions and close all sockets."""
        if self._ticker is not None:
            self._ticker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._ticker
        for subscription in list(self._subscriptions):
            await self.unsubscribe(subscription)
        self.discard_prepared()
        if self._bound is not None:
            self._bound.close()
        await self._turns.close()
        self._context.destroy(linger=0)

    def _replay(self, address: str | None) -> ReplayServer | None:
        if address is None:
            return None
        limits, budget = self._options.replay_limits, self._replay_budget
        return ReplayServer(self._context, self._turns, self._slots, limits, budget, address)

    def _snapshots(self, address: str | None) -> SnapshotServer | None:
        if address is None:
            return None
        return SnapshotServer(self._context, self._snapshot_slots, self._options.snapshot_limits, address)

    def _add(self, subscription: Subscription) -> Subscription:
        self._subscriptions.add(subscription)
        if self._ticker is None:
            self._ticker = keep(self._tick, "events ticker")
        return subscription

    async def _tick(self) -> None:
        while True:
            # jitter, so that a fleet that started together does not request replays together for ever
            await asyncio.sleep(self._options.tick_s * (0.75 + random.random() / 2))
            for subscription in list(self._subscriptions):
                try:
                    subscription.tick()
                except Exception as error:  # noqa: BLE001 - one publisher must not end the time-outs of all
                    subscription.failed(error)
