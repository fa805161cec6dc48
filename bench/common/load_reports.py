"""A server of `/metrics` for all endpoints of a fleet, in the benchmark's own process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

_BODY = "vllm:num_requests_running{{}} {}\nvllm:num_requests_waiting{{}} {}\nvllm:kv_cache_usage_perc{{}} 0.{:02}\n"
_POLL_S = 0.05


class LoadReports:
    """Loads that differ from report to report.

    Attributes:
        n_sent: how many reports have been sent.
        url: where they are, for every endpoint; known while it runs.
    """

    def __init__(self) -> None:
        self.n_sent = 0
        self.url = ""

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Listen; yields once the URL is known."""
        async with await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=4096) as server:
            self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/metrics"
            yield

    async def until_sent(self, n: int) -> None:
        """Wait until so many reports have been sent."""
        while self.n_sent < n:  # noqa: ASYNC110 - a measured process is idle meanwhile, so are we
            await asyncio.sleep(_POLL_S)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                number = self.n_sent
                body = _BODY.format(number % 50, number % 7, number % 100).encode()
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
                self.n_sent += 1
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()
