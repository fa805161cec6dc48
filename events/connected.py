"""`connect`: one SUB socket a publisher, connected to its PUB socket and watched for lost connections."""

from __future__ import annotations

import asyncio
import logging

import zmq
import zmq.asyncio
from zmq.utils.monitor import recv_monitor_message

from .errors import FrameError, SubscriptionError
from .sockets import open_monitor, open_socket, receive_all, spawn
from .subscription import SubscriberOptions, Subscription, read_message

log = logging.getLogger(__name__)


class Connection:
    """A SUB socket that connects to a publisher; what comes waits in it until somebody receives. Cost: 0.3 ms.

    Args:
        context: owner of the sockets.
        address: of the publisher's PUB socket.
        options: settings.

    Attributes:
        socket: where messages come.
        monitor: where connections and lost connections are told.

    Raises:
        SubscriptionError: an address that ZMQ cannot use, or too many sockets.
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
        """Free the sockets."""
        self.socket.disable_monitor()
        self.monitor.close(linger=0)
        self.socket.close(linger=0)


class ConnectedSource:
    """One publisher's live messages over a connection of our own. Implements `subscription.LiveSource`.

    Args:
        connection: to the publisher; closed with this.
        address: of the publisher's PUB socket.
        options: settings.
        subscription: takes the messages.
    """

    def __init__(
        self, connection: Connection, address: str, options: SubscriberOptions, subscription: Subscription
    ) -> None:
        self._connection = connection
        self._address, self._decode, self._subscription = address, options.decode, subscription
        self._tasks = [
            spawn(receive_all(connection.socket, self._take), f"events {address}"),
            spawn(self._watch(), f"connection {address}"),
        ]

    def stop(self) -> None:
        """See `LiveSource.stop`."""
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        """See `LiveSource.close`."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._connection.close()

    def _take(self, frames: list[bytes]) -> None:
        try:
            seq, batch = read_message(frames, self._decode)
        except FrameError as error:
            self._subscription.rejected("bad_frames")
            log.debug("%s (publisher %s)", error, self._address)
            return
        self._subscription.live(seq, batch, topic=frames[0])

    async def _watch(self) -> None:
        while True:
            message = await recv_monitor_message(self._connection.monitor)
            if message["event"] == zmq.Event.HANDSHAKE_SUCCEEDED:
                self._subscription.connected()
            else:
                self._subscription.disconnected()
