"""Thread that reads long requests, so that others are served meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from .errors import NotReadError
from .requests.cost import MAX_COST

T = TypeVar("T")

QUEUE_BYTES = 128 * 2**20
"""Limit of the requests that wait for the thread, and of the one that it reads."""

TIMEOUT_S = 0.4


class Reader:
    """One thread for the requests of one event loop whose reading takes longer than a few milliseconds.

    More threads would only take turns at the interpreter's lock, in which the loop would have a smaller part.

    Args:
        max_cost: limit of one request; see `requests.cost`.
        timeout_s: longest wait for a result. Work that has not begun by then is dropped.
        queue_bytes: a request is refused if this much would wait with it.
    """

    def __init__(
        self, *, max_cost: int = MAX_COST, timeout_s: float = TIMEOUT_S, queue_bytes: int = QUEUE_BYTES
    ) -> None:
        self.max_cost = max_cost
        self._timeout_s, self._queue_bytes = timeout_s, queue_bytes
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="read")
        self._lock = threading.Lock()
        self._n_bytes = 0

    async def run(self, work: Callable[[], T], *, n_bytes: int) -> T:
        """Return the result of `work`, called in the thread; `n_bytes` is the length of what it reads.

        Raises:
            NotReadError: too much waits for the thread, or there was no result in time.
            Exception: any that `work` raises.
        """
        if self._n_bytes and self._n_bytes + n_bytes > self._queue_bytes:
            raise NotReadError(f"{self._n_bytes} bytes of requests wait to be read")
        self._add(n_bytes)
        future = self._executor.submit(work)
        future.add_done_callback(lambda _: self._add(-n_bytes))
        try:
            # A cancelled wait cancels work that has not begun.
            return await asyncio.wait_for(asyncio.wrap_future(future), self._timeout_s)
        except TimeoutError as error:
            raise NotReadError(f"reading the request took longer than {self._timeout_s:g} s") from error

    def close(self) -> None:
        """Drop what waits, and wait for the end of what is being read."""
        self._executor.shutdown(cancel_futures=True)

    def _add(self, n_bytes: int) -> None:
        with self._lock:  # called by both threads
            self._n_bytes += n_bytes
