"""KV events of recorded servers, each published on the loopback address of its recording and all on one free port."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial

import msgspec
import zmq

from kvatlas.sim.held_port import HeldPort
from support.replay.recordings import Json
from support.waiting import until

RECORDED_EVENTS_PORT = 5557


class Publishers:
    """The event sockets of one fleet, by name of the server.

    Args:
        endpoints: the recording's.
    """

    def __init__(self, endpoints: Sequence[Json]) -> None:
        self._context = zmq.Context()
        self._held = HeldPort("0.0.0.0")
        self.port = self._held.number
        """Of all of them."""
        self._topics = {each["name"]: f"kv@{each['address']}:{each['port']}@m" for each in endpoints}
        self._sockets = {each["name"]: self._context.socket(zmq.XPUB) for each in endpoints}
        self._counts = dict.fromkeys(self._topics, 0)
        for each in endpoints:
            self._sockets[each["name"]].bind(f"tcp://{each['address']}:{self.port}")

    def close(self) -> None:
        self._context.destroy(linger=0)

    async def publish(self, events: Mapping[str, Sequence[object]]) -> dict[str, int]:
        """Publish a batch for each server, once the picker listens to it; return server -> sequence number."""
        sent: dict[str, int] = {}
        for name, batch in events.items():
            socket, seq = self._sockets[name], self._counts[name]
            if not seq:
                await until(partial(socket.poll, 0), what=f"the subscription to {name}")
            payload = msgspec.msgpack.encode([time.time(), batch, 0])
            socket.send_multipart([self._topics[name].encode(), seq.to_bytes(8, "big"), payload])
            self._counts[name] = seq + 1
            sent[name] = seq
        return sent
