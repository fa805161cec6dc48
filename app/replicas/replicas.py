"""This process among its replicas: what it shares with them, and by which transport."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, MutableMapping, Sequence
from importlib.metadata import version
from zlib import crc32

from prometheus_client.metrics_core import Metric

from ...configs.schema import KVAtlasConfig
from ...fleet.replicas.channel import Letters
from ...fleet.replicas.identity import Identity
from ...fleet.replicas.knowledge import Knowledge
from ...fleet.replicas.replica import Replica
from ...fleet.replicas.sibling import Sibling
from .loop import ReplicaLoop
from .metrics import replica_families
from .pod import Place
from .transports import transport_opener


class Replicas:
    """One replica among the others; it exists only if there may be others.

    Args:
        config: of this process.
        place: place among the workers of its pod; None if it is the only one.

    Attributes:
        identity: of this process among them.
        mates: names of the other workers of its pod.
        number: differs among the workers of a pod, and by chance among pods.
        knowledge: what is shared; complete before `start`.
        letters: name -> receiver of letters; complete before `start`.
    """

    def __init__(self, config: KVAtlasConfig, *, place: Place | None = None) -> None:
        pod = config.replicas.name or socket.gethostname()
        self._config, self._place = config, place
        self.number = crc32(pod.encode()) + (place.worker if place is not None else 0)
        self.identity = _identity(config, pod if place is None else place.name(pod))
        self.mates = place.mates(pod) if place is not None else frozenset[str]()
        self.knowledge = Knowledge(time.monotonic, me=self.identity.id)
        self.letters: MutableMapping[str, Letters] = {}
        self._loop: ReplicaLoop | None = None

    def start(self) -> None:
        """Begin to talk to the others.

        Raises:
            ReplicaError: the transport cannot be opened.
            AccessError: the others are found by the cluster, and no API server can be reached.
        """
        replicas = self._config.replicas
        opener = transport_opener(self._config, self.identity, place=self._place, mates=self.mates)
        silent_ns = round(replicas.silent_after * 1e9)
        core = Replica(self.identity, self.knowledge.channels, letters=self.letters, silent_ns=silent_ns)
        self._loop = ReplicaLoop(core, opener)
        self._loop.start()

    async def stop(self) -> None:
        """Take leave of the others; does nothing before `start`."""
        if self._loop is not None:
            await self._loop.stop()

    @property
    def problem(self) -> str:
        """Why nobody, or not everybody, can be reached; empty if there is no problem."""
        return self._loop.transport.traffic.problem if self._loop is not None else ""

    def siblings(self) -> Sequence[Sibling]:
        """Return the others, as known."""
        return self._loop.core.siblings() if self._loop is not None else ()

    def living(self) -> Sequence[str]:
        """Return the ids of the siblings that are heard."""
        return self._loop.core.live if self._loop is not None else ()

    def post(self, name: str, to: str, payload: bytes) -> None:
        """Send a letter to one sibling, for its receiver of that name; does nothing before `start`."""
        if self._loop is not None:
            self._loop.send(self._loop.core.letter(name, to, payload))

    def families(self) -> Iterator[Metric]:
        """Yield the metrics of replicas; without samples before `start`."""
        return replica_families(self._loop, self.knowledge)


def _identity(config: KVAtlasConfig, name: str) -> Identity:
    kubernetes = config.endpoints.kubernetes
    models = sorted(name for model in config.served_models for name in model.names)
    return Identity(
        name=name,
        boot=time.time_ns(),
        pool=kubernetes.inference_pool or kubernetes.endpoint_selector or ",".join(models) or "default",
        keys=f"seed={config.index.hash_seed}",
        version=version("kvatlas"),
    )
