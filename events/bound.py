"""`bind`: one SUB socket that every engine's PUB socket connects to; the topic says who is speaking."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import zmq
import zmq.asyncio

from .errors import FrameError, SubscriptionError, TopicError
from .sockets import bound_address, open_socket, receive_all, spawn
from .subscription import SubscriberOptions, Subscription, read_message
from .topics import TopicDirectory

log = logging.getLogger(__name__)

_MAX_LOGGED_TOPICS = 256
"""Topics without endpoint that are logged, once each; every message on one is counted."""

_SHOWN_TOPIC_BYTES = 200


class BoundSocket:
    """Takes the messages of all publishers and hands each to the subscription of its endpoint and rank.

    ZMQ does not tell which peer of a bound socket left, so a lost connection is not seen; `Subscription` says what
    stands in for it. A publisher's rank is the one its batches name; an endpoint with one rank takes them all.

    Args:
        context: owner of the socket.
        address: `tcp://HOST:PORT` of ours, `tcp://*:PORT` for every interface, or `ipc://PATH`.
        options: settings.

    Attributes:
        address: as bound, with the port that was free when 0 was asked for.
        unrouted: messages of no known publisher, by reason.

    Raises:
        SubscriptionError: the address is taken, or not one of this machine's.
    """

    def __init__(self, context: zmq.asyncio.Context, address: str, options: SubscriberOptions) -> None:
        self._decode = options.decode
        self._directory = TopicDirectory()
        self._ranks: dict[str, dict[int, Subscription]] = {}
        self._logged: set[bytes] = set()
        self.unrouted: Counter[str] = Counter()
        self._socket = open_socket(
            context, zmq.SUB, receive_hwm=options.receive_hwm, ipv6="[" in address or "*" in address
        )
        self._socket.subscribe(options.topic_prefix)
        try:
            self._socket.bind(address)
        except zmq.ZMQError as error:
            self._socket.close(linger=0)
            raise SubscriptionError(
                f"cannot listen for events on {address!r}: {zmq.strerror(error.errno or 0)}; "
                "stop what listens there, or set events.bind to another address"
            ) from None
        self.address = bound_address(self._socket)
        self._task = spawn(receive_all(self._socket, self._take), f"events {self.address}")

    def route(self, publisher: BoundPublisher, subscription: Subscription) -> Route:
        """Hand the publisher's messages to `subscription` from now on."""
        ranks = self._ranks.setdefault(publisher.endpoint, {})
        if not ranks:
            self._directory.add(publisher.endpoint, publisher.serving)
        ranks[publisher.rank] = subscription
        return Route(self, publisher, subscription)

    def forget(self, publisher: BoundPublisher, subscription: Subscription) -> None:
        """Hand `subscription` nothing from now on; one that another has replaced is ignored."""
        ranks = self._ranks.get(publisher.endpoint, {})
        if ranks.get(publisher.rank) is not subscription:
            return
        del ranks[publisher.rank]
        if not ranks:
            del self._ranks[publisher.endpoint]
            self._directory.remove(publisher.endpoint)

    async def close(self) -> None:
        """Stop, and free the address."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._socket.close(linger=0)

    def _take(self, frames: list[bytes]) -> None:
        try:
            ranks = self._ranks[self._directory.find(frames[0])]
        except TopicError as error:
            self.unrouted[error.reason] += 1
            self._log_once(frames[0], error)
            return
        try:
            seq, batch = read_message(frames[1:], self._decode)
        except FrameError as error:
            next(iter(ranks.values())).rejected("bad_frames")
            log.debug("%s (topic %r)", error, frames[0])
            return
        subscription = _of_rank(ranks, batch.rank)
        if subscription is None:
            next(iter(ranks.values())).rejected(batch.rejected[0] if batch.rejected else "unknown_rank")
        else:
            subscription.live(seq, batch, topic=frames[0])

    def _log_once(self, topic: bytes, error: TopicError) -> None:
        shown = topic[:_SHOWN_TOPIC_BYTES]
        if shown in self._logged or len(self._logged) >= _MAX_LOGGED_TOPICS:
            return
        self._logged.add(shown)
        log.warning(
            "events on topic %r are not taken: %s; the known endpoints are %s%s",
            shown.decode(errors="replace"), error, ", ".join(sorted(self._ranks)) or "none",
            "; no further topic is logged" if len(self._logged) == _MAX_LOGGED_TOPICS else "",
        )  # fmt: skip


def _of_rank(ranks: Mapping[int, Subscription], rank: int | None) -> Subscription | None:
    """The publisher of a batch that names `rank`; without a name, or unreadable, it may be any of several."""
    if len(ranks) == 1:
        return next(iter(ranks.values()))
    return None if rank is None else ranks.get(rank)


@dataclass(frozen=True, slots=True)
class BoundPublisher:
    """How a publisher that connects to us is told from the others.

    Attributes:
        endpoint: unique name.
        serving: `HOST:PORT` that serves requests, as topics name it.
        rank: data-parallel rank.
    """

    endpoint: str
    serving: str
    rank: int


@dataclass(frozen=True, slots=True)
class Route:
    """One publisher's share of a bound socket. Implements `subscription.LiveSource`."""

    socket: BoundSocket
    publisher: BoundPublisher
    subscription: Subscription

    def stop(self) -> None:
        """See `LiveSource.stop`."""
        self.socket.forget(self.publisher, self.subscription)

    async def close(self) -> None:
        """See `LiveSource.close`: the socket belongs to all."""
