"""The `bind` mode: one SUB socket to which all engines connect; the topic names the publisher."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass

import zmq
import zmq.asyncio

from .admission import Access, Admission
from .byte_budget import ByteBudget
from .errors import FAILED, FrameError, SubscriptionError, TopicError, describe
from .inbox import inbox_within
from .message import Unreadable, read_message
from .options import SubscriberOptions
from .receiver import Receiver
from .sockets import bound_address, open_socket
from .subscription import Subscription
from .topics import SHOWN_TOPIC_BYTES, TopicDirectory
from .turns import Turns

log = logging.getLogger(__name__)

_MAX_LOGGED = 256
"""Topics without a known endpoint, and failures, that are logged, once each; every message is counted."""


class BoundSocket:
    """A socket that receives all publishers and passes each message to the subscription of its endpoint and rank.

    Implements `receiver.Taker`.

    ZMQ does not report which peer of a bound socket left, so lost connections are not seen; `Subscription` describes
    the substitute. Batches name their rank; an endpoint with one rank takes them all.

    Args:
        context: owner of the socket.
        turns: when to receive.
        address: a local `tcp://HOST:PORT`, `tcp://*:PORT` for every interface, or `ipc://PATH`.
        options: settings.
        access: who may connect.

    Attributes:
        address: as bound, with the actual port if 0 was given.
        unrouted: messages from no known publisher, by reason.

    Raises:
        SubscriptionError: the address is in use, or does not belong to this machine.
    """

    def __init__(
        self,
        context: zmq.asyncio.Context,
        turns: Turns,
        address: str,
        options: SubscriberOptions,
        access: Access,
    ) -> None:
        self._decode = options.decode
        self._directory = TopicDirectory()
        self._ranks: dict[str, dict[int, Subscription]] = {}
        self._logged: set[bytes | str] = set()
        self.unrouted: Counter[str] = Counter()
        self._socket = open_socket(
            context, zmq.SUB, receive_hwm=options.receive_hwm, ipv6="[" in address or "*" in address
        )
        self._socket.subscribe(options.topic_prefix)
        self._admission = Admission(context, turns, self._socket, access)
        try:
            self._socket.bind(address)
        except zmq.ZMQError as error:
            self._admission.close()
            self._socket.close(linger=0)
            raise SubscriptionError(
                f"cannot listen for events on {address!r}: {zmq.strerror(error.errno or 0)}; "
                "stop the process that listens there, or set events.bind to another address"
            ) from None
        self.address = bound_address(self._socket)
        self._receiver = Receiver(
            self._socket, turns, self, open_inbox=inbox_within(ByteBudget(options.limits.max_held_bytes))
        )

    @property
    def refused(self) -> Counter[str]:
        """Refused connections by reason."""
        return self._admission.refused

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

    def close(self) -> None:
        """Stop receiving and free the address."""
        self._receiver.close()
        self._admission.close()
        self._socket.close(linger=0)

    def is_ready(self) -> bool:
        """See `Taker.is_ready`."""
        return True

    def dropped(self, frames: list[bytes], reason: str) -> bool:  # noqa: ARG002 - a method of Taker
        """See `Taker.dropped`."""
        self.unrouted[reason] += 1
        return False

    def failed(self, error: Exception) -> None:
        """See `Taker.failed`."""
        self.unrouted[FAILED] += 1
        place = describe(error)
        if self._is_new(place):
            log.error("a message on %s was dropped by a bug: %s; it is not logged again", self.address, place)

    def take(self, frames: list[bytes]) -> None:
        """See `Taker.take`."""
        try:
            ranks = self._ranks[self._directory.find(frames[0])]
        except TopicError as error:
            self.unrouted[error.reason] += 1
            self._log_once(frames[0], error)
            return
        first = next(iter(ranks.values()))
        try:
            seq, content, life = read_message(frames[1:], self._decode)
        except FrameError as error:
            first.reject("bad_frames", error)
            return
        if isinstance(content, Unreadable):
            first.reject(content.reason, content.detail)
            return
        rank = content.rank
        subscription = first if len(ranks) == 1 else None if rank is None else ranks.get(rank)
        if subscription is None:  # a batch without a rank may come from any of several
            first.reject("unknown_rank", f"batch names a rank that is none of {sorted(ranks)}")
        else:
            subscription.live(seq, content, topic=frames[0], life=life)

    def _log_once(self, topic: bytes, error: TopicError) -> None:
        shown = topic[:SHOWN_TOPIC_BYTES]
        if self._is_new(shown):
            log.warning(
                "events on topic %r are ignored: %s; the known endpoints are %s%s",
                shown.decode(errors="replace"), error, ", ".join(sorted(self._ranks)) or "none",
                "; no further topic is logged" if len(self._logged) == _MAX_LOGGED else "",
            )  # fmt: skip

    def _is_new(self, logged: bytes | str) -> bool:
        """Return whether to log this, which nobody did before."""
        if logged in self._logged or len(self._logged) >= _MAX_LOGGED:
            return False
        self._logged.add(logged)
        return True


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
