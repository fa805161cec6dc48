"""The `bind` mode: one SUB socket to which all engines connect; the topic names the publisher."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from dataclasses import dataclass

import zmq
import zmq.asyncio

from .errors import FrameError, SubscriptionError, TopicError
from .message import Unreadable, read_message
from .sockets import bound_address, open_socket, receive_all
from .subscription import SubscriberOptions, Subscription
from .tasks import keep
from .topics import TopicDirectory

log = logging.getLogger(__name__)

_MAX_LOGGED_TOPICS = 256
"""Topics without a known endpoint that are logged, once each; every message on one is counted."""

_SHOWN_TOPIC_BYTES = 200


class BoundSocket:
    """A socket that receives all publishers and passes each message to the subscription of its endpoint and rank.

    ZMQ does not report which peer of a bound socket left, so lost connections are not seen; `Subscription` describes
    the substitute. Batches name their rank; an endpoint with one rank takes them all.

    Args:
        context: owner of the socket.
        address: a local `tcp://HOST:PORT`, `tcp://*:PORT` for every interface, or `ipc://PATH`.
        options: settings.

    Attributes:
        address: as bound, with the actual port if 0 was given.
        unrouted: messages from no known publisher, by reason.

    Raises:
        SubscriptionError: the address is in use, or does not belong to this machine.
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
                "stop the process that listens there, or set events.bind to another address"
            ) from None
        self.address = bound_address(self._socket)
        self._task = keep(lambda: receive_all(self._socket, self._take), "events", of=self.address)

    def route(self, publisher: BoundPublisher, subscription: Subscription) -> Route:
        """Pass the publisher's messages to `subscription`."""
        ranks = self._ranks.setdefault(publisher.endpoint, {})
        if not ranks:
            self._directory.add(publisher.endpoint, publisher.serving)
        ranks[publisher.rank] = subscription
        return Route(self, publisher, subscription)

    def forget(self, publisher: BoundPublisher, subscription: Subscription) -> None:
        """Pass `subscription` no more messages; one that another has replaced is ignored."""
        ranks = self._ranks.get(publisher.endpoint, {})
        if ranks.get(publisher.rank) is not subscription:
            return
        del ranks[publisher.rank]
        if not ranks:
            del self._ranks[publisher.endpoint]
            self._directory.remove(publisher.endpoint)

    async def close(self) -> None:
        """Stop receiving and free the address."""
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
        first = next(iter(ranks.values()))
        try:
            seq, content = read_message(frames[1:], self._decode)
        except FrameError as error:
            first.reject("bad_frames", f"{error} (topic {frames[0]!r})")
            return
        if isinstance(content, Unreadable):
            first.reject(content.reason, content.detail)
            return
        rank = content.rank
        subscription = first if len(ranks) == 1 else None if rank is None else ranks.get(rank)
        if subscription is None:  # a batch without a rank may come from any of several
            first.reject("unknown_rank", f"batch names rank {rank}, want one of {sorted(ranks)}")
        else:
            subscription.live(seq, content, topic=frames[0])

    def _log_once(self, topic: bytes, error: TopicError) -> None:
        shown = topic[:_SHOWN_TOPIC_BYTES]
        if shown in self._logged or len(self._logged) >= _MAX_LOGGED_TOPICS:
            return
        self._logged.add(shown)
        log.warning(
            "events on topic %r are ignored: %s; the known endpoints are %s%s",
            shown.decode(errors="replace"), error, ", ".join(sorted(self._ranks)) or "none",
            "; no further topic is logged" if len(self._logged) == _MAX_LOGGED_TOPICS else "",
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class BoundPublisher:
    """The identity of a publisher that connects to us.

    Attributes:
        endpoint: unique name.
        serving: `HOST:PORT` that serves requests, as in topics.
        rank: data-parallel rank.
    """

    endpoint: str
    serving: str
    rank: int


@dataclass(frozen=True, slots=True)
class Route:
    """The messages of one publisher on a bound socket. Implements `subscription.LiveSource`."""

    socket: BoundSocket
    publisher: BoundPublisher
    subscription: Subscription

    def stop(self) -> None:
        """See `LiveSource.stop`."""
        self.socket.forget(self.publisher, self.subscription)

    async def close(self) -> None:
        """Do nothing: the socket belongs to all publishers."""
