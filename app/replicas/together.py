"""What replicas do together beside sharing what they know: warm starts, and one configuration."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.metrics_core import Metric

from ...api.rest.answers import Answers, OwnAnswers
from ...events.tasks import keep
from ...fleet.registered import Registry
from ...fleet.replicas.identity import Identity
from ...fleet.replicas.picks import Picks
from ...fleet.replicas.sibling import Sibling
from ...fleet.replicas.word import Word
from ...fleet.snapshots import Snapshots
from ...routing.plan.live import LiveConfig
from . import requests, warm
from .answers import ReplicaAnswers
from .configuration import CHANNEL, SharedConfiguration
from .gathered import Gathered
from .registrations import SharedRegistrations
from .replicas import Replicas
from .requests import Requests
from .warm import WarmStarts


class Together:
    """One replica among its siblings. Implements `fleet.replicas.view.ReplicasView`.

    Args:
        network: the siblings, to whom nothing was sent yet.
        snapshots: of this process.
        live: its configuration.
        transport: name of the transport.
        silent_s: time after which a silent sibling is dropped.
    """

    def __init__(
        self, network: Replicas, snapshots: Snapshots, live: LiveConfig, *, transport: str, silent_s: float
    ) -> None:
        self._network, self._snapshots, self._live, self._transport = network, snapshots, live, transport
        self._warm = WarmStarts(
            snapshots,
            replica=network.identity.id,
            siblings=network.living,
            post=lambda to, payload: network.post(warm.LETTERS, to, payload),
        )
        self._requests = Requests(
            network.living,
            lambda to, payload: network.post(requests.LETTERS, to, payload),
            expected=network.mates,
        )
        self._shared = SharedConfiguration(
            network.identity.id, network.identity.name, live, living=network.living, silent_s=silent_s
        )
        network.letters.update({warm.LETTERS: self._warm, requests.LETTERS: self._requests})
        network.knowledge.channels[CHANNEL] = self._shared.words

    @property
    def identity(self) -> Identity:
        """See `ReplicasView.identity`."""
        return self._network.identity

    @property
    def transport(self) -> str:
        """See `ReplicasView.transport`."""
        return self._transport

    @property
    def problem(self) -> str:
        """See `ReplicasView.problem`."""
        return self._network.problem

    @property
    def word(self) -> Word:
        """See `ReplicasView.word`."""
        return self._shared.agreement.word

    @property
    def words(self) -> Mapping[str, Word]:
        """See `ReplicasView.words`."""
        return self._shared.agreement.words

    @property
    def picks(self) -> Picks:
        """See `ReplicasView.picks`."""
        return self._network.knowledge.picks

    def siblings(self) -> Sequence[Sibling]:
        """See `ReplicasView.siblings`."""
        return self._network.siblings()

    def answers(self, own: OwnAnswers) -> Answers:
        """Return the REST answers of all replicas."""
        return ReplicaAnswers(Gathered(own, self._requests), self._live, self._shared)

    def registrations(self, own: Registry) -> SharedRegistrations:
        """Return the registered instances of all replicas."""
        return SharedRegistrations(own, self._shared)

    async def read_snapshot(self) -> None:
        """Read the snapshot of a sibling and of the own file; call it once, after the network was started."""
        given = await self._warm.take()
        if given is None:
            await self._snapshots.read()
        else:
            await self._snapshots.read(given[1], giver=given[0].partition("/")[0])

    async def catch_up(self) -> None:
        """Put in force what REST changed on the siblings; call it once, before `tasks`."""
        await self._shared.catch_up()

    def tasks(self) -> list[asyncio.Task[None]]:
        """Begin what goes on while the process runs."""
        return [
            keep(self._warm.give, "snapshots for other replicas", needed=False),
            keep(self._shared.run, "configuration of all replicas", needed=False),
        ]

    def ready(self) -> None:
        """Give snapshots from now on: the engines' history is known."""
        self._warm.ready()

    def families(self) -> Iterator[Metric]:
        """Yield the metrics of warm starts."""
        return self._warm.families()
