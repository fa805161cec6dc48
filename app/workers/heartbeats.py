"""Heartbeats of the workers, in memory that they share with their parent."""

from __future__ import annotations

import mmap

_SIZE = 8


class Heartbeats:
    """One counter of heartbeats for each worker. To be made before the workers are forked.

    Args:
        n_workers: number of workers.
    """

    def __init__(self, n_workers: int) -> None:
        self._counts = memoryview(mmap.mmap(-1, _SIZE * n_workers)).cast("Q")
        self._seen = [0] * n_workers
        self._silent_s = [0.0] * n_workers

    def beat(self, worker: int) -> None:
        """Count one heartbeat. Called in the worker, by its event loop."""
        self._counts[worker] += 1

    def started(self, worker: int) -> None:
        """Count anew for a worker that starts. Called in the parent."""
        self._counts[worker] = self._seen[worker] = 0
        self._silent_s[worker] = 0.0

    def is_starting(self, worker: int) -> bool:
        """Return whether the worker has had no heartbeat since its start."""
        return self._seen[worker] == 0

    def has_begun(self, worker: int) -> bool:
        """Return whether the worker has had a heartbeat since its start, also if the parent has not looked since."""
        return self._counts[worker] > 0

    def silent_s(self, worker: int, *, passed_s: float) -> float:
        """Return for how long the worker has been silent, of which `passed_s` passed since the last call.

        The caller counts time, since a clock would also count time in which worker and parent were both stopped.
        """
        count = self._counts[worker]
        self._silent_s[worker] = self._silent_s[worker] + passed_s if count == self._seen[worker] else 0.0
        self._seen[worker] = count
        return self._silent_s[worker]
