"""Worker processes of one pod, which are replicas of each other over Unix sockets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Place:
    """Place of a worker process in its pod.

    Attributes:
        worker: its number, from 0.
        n_workers: number of workers of the pod.
        folder: of the workers' sockets; only this user may enter it, so that messages need no secret.
    """

    worker: int
    n_workers: int
    folder: Path

    @property
    def address(self) -> str:
        """ZMQ address of this worker."""
        return self._address(self.worker)

    @property
    def others(self) -> Sequence[str]:
        """ZMQ addresses of the other workers."""
        return [self._address(each) for each in range(self.n_workers) if each != self.worker]

    def name(self, pod: str) -> str:
        """Return the name of this worker among the replicas, such as `kvatlas-0.1`."""
        return _name(pod, self.worker)

    def mates(self, pod: str) -> frozenset[str]:
        """Return the names of the other workers."""
        return frozenset(_name(pod, each) for each in range(self.n_workers) if each != self.worker)

    def _address(self, worker: int) -> str:
        return f"ipc://{self.folder / str(worker)}"


def _name(pod: str, worker: int) -> str:
    return f"{pod}.{worker}"
