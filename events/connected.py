"""The `connect` mode: one SUB socket per publisher, connected to its PUB socket and watched for lost connections."""

from __future__ import annotations

import asyncio

import zmq
import zmq.asyncio
from zmq.utils.monitor import recv_monitor_message

from .errors import FrameError, SubscriptionError
from .inbox import Inbox
from .lazy_batch import LazyBatch
from .message import read_message
from .options import SubscriberOptions
from .receiver import Receiver
from .sockets import open_monitor, open_socket
from .subscription import Subscription
from .tasks import keep
from .turns import Turns


class Connection:
    """A SUB socket connected to a publisher; messages wait in it until they are received. Cost: 0.3 ms.

    Args:
        context: owner of the sockets.
        address: of the publisher's PUB socket.
        options: settings.

    Attributes:
        socket: receives messages.
        monitor: receives reports of connections and disconnects.

    Raises:
        SubscriptionError: ZMQ cannot use the address, or too many sockets are open.
    """

    def __init__(self, context: zmq.asyncio.Context, address: str, options: SubscriberOptions) -> None:
        self.socket = open_socket(context, zmq.SUB, receive_hwm=options.receive_hwm, ipv6="[" in address)
        try:
            self.socket.subscribe(options.topic_prefix)
            self.monitor = open_monitor(self.socket, zmq.Event.HANDSHAKE_SUCCEEDED | zmq.Event.DISCONNECTED)
        except SubscriptionError:
            self.socket.close(linger=0)
            raise
        try:
            self.socket.connect(address)
        except zmq.ZMQError as error:
            self.close()
            raise SubscriptionError(
                f"cannot subscribe to {address!r}: {error}; want tcp://HOST:PORT or ipc://PATH"
            ) from None

    def close(self) -> None:
        """Close the sockets."""
        self.socket.disable_monitor()
        self.monitor.close(linger=0)
        self.socket.close(linger=0)


class ConnectedSource:
    """Live messages of one publisher over a connection of its own. Implements `LiveSource` and `receiver.Taker`.

    Args:
        connection: to the publisher; closed with the source.
        turns: when to receive.
        address: of the publisher's PUB socket.
        options: settings.
        subscription: takes the messages.
    """

    def __init__(
        self,
        connection: Connection,
        turns: Turns,
        address: str,
        options: SubscriberOptions,
        subscription: Subscription,
    ) -> None:
        self._connection = connection
        self._decode, self._subscription = options.decode, subscription
        self.dropped, self.failed = subscription.dropped, subscription.failed
        self._receiver = Receiver(
            connection.socket,
            turns,
            self,
            open_inbox=lambda socket, losses: options.open_inbox(
                socket, losses, options.limits.max_held_bytes
            ),
            run=self._run,
        )
        self._watching = keep(self._watch, "connection", of=address)

    def stop(self) -> None:
        """See `LiveSource.stop`."""
        self._receiver.close()
        self._watching.cancel()

    async def close(self) -> None:
        """See `LiveSource.close`."""
        await asyncio.gather(self._watching, return_exceptions=True)
        self._connection.close()

    def is_ready(self) -> bool:
        """See `Taker.is_ready`: the stream orders what it gets."""
        return True

    def take(self, frames: list[bytes]) -> None:
        """See `Taker.take`."""
        self._take(frames)

    def _take(self, frames: list[bytes], *, n_applied: int = 0, n_unknown: int = 0) -> None:
        try:
            seq, content, life = read_message(frames, self._decode)
        except FrameError as error:
            self._subscription.reject("bad_frames", error)
            return
        if n_applied and isinstance(content, LazyBatch):
            content.resume(n_applied, n_unknown=n_unknown)
        self._subscription.live(seq, content, topic=frames[0], life=life)

    def _run(self, inbox: Inbox) -> bool:
        run = self._subscription.run(inbox)
        if run is None:
            return False
        if run.n_applied and (frames := inbox.next()) is not None:
            self._take(frames, n_applied=run.n_applied, n_unknown=run.n_unknown_amid)
        return bool(run.n_applied or run.timestamps)

    async def _watch(self) -> None:
        while True:
            message = await recv_monitor_message(self._connection.monitor)
            if message["event"] == zmq.Event.HANDSHAKE_SUCCEEDED:
                self._subscription.connected()
            else:
                self._subscription.disconnected()
