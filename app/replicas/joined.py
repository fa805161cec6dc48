"""Two transports as one: to the other workers of the pod, and to other pods."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from ...events.tasks import keep
from ...fleet.replicas.replica import Outgoing
from .transport import Traffic, Transport


class Joined:
    """Implements `Transport`.

    Messages to all go out on both, so that the workers of a pod continue if the network between pods fails. A sibling that gets
    both copies drops the second one by its number. Messages to one sibling go out once.

    Args:
        pod: to the other workers of the pod.
        network: to the other pods.
        mates: names of the other workers of the pod.
    """

    def __init__(self, pod: Transport, network: Transport, *, mates: Collection[str]) -> None:
        self._pod, self._network, self._mates = pod, network, frozenset(mates)

    @property
    def traffic(self) -> Traffic:
        """See `Transport.traffic`."""
        return self._pod.traffic + self._network.traffic

    async def run(self) -> None:
        """See `Transport.run`."""
        # Each restarts by itself, so that a failure of one does not end the other.
        runs = [
            keep(self._pod.run, "messages of workers", needed=False),
            keep(self._network.run, "messages of other pods", needed=False),
        ]
        try:
            await asyncio.gather(*runs)
        finally:
            for run in runs:
                run.cancel()
            await asyncio.gather(*runs, return_exceptions=True)

    async def close(self) -> None:
        """See `Transport.close`."""
        await asyncio.gather(self._pod.close(), self._network.close())

    def send(self, outgoing: Outgoing) -> None:
        """See `Transport.send`."""
        is_mate = outgoing.to is not None and outgoing.to.partition("/")[0] in self._mates
        if outgoing.to is None or is_mate:
            self._pod.send(outgoing)
        if not is_mate:
            self._network.send(outgoing)
