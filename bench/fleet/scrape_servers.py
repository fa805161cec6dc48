"""Many engines' `/metrics` in one process: real HTTP, a recorded exposition of vLLM whose numbers change all the time.

Use: python bench/fleet/scrape_servers.py --servers 100 --body FILE [--waiting 3 [--busy 30]] [--filter]

Prints the ports, and ends when its standard input ends. With `--busy` the first ones show a queue, the others none. With `--filter` a request that names series (`name[]=...`) gets these
alone, as the Prometheus client library answers where a server passes the parameter on; vLLM up to 0.32 does not.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import cast
from urllib.parse import parse_qs, urlsplit

import uvloop

VARIANTS = 64
_HEAD = "HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/plain; version=0.0.4\r\ncontent-length: {}\r\n\r\n"
_COUNTER = re.compile(rb"^([^#\s][^\n]*(?:_total|_sum|_count|_bucket)[^\n]*) \S+$", flags=re.MULTILINE)


def with_other_numbers(body: bytes, rng: random.Random, *, waiting: int) -> bytes:
    """Return the body after more work: every counter has another value, of another length."""
    body = _COUNTER.sub(lambda match: match[1] + b" %d.0" % rng.randrange(10 ** rng.randrange(1, 9)), body)
    queue = rb"^(vllm:num_requests_waiting\{[^\n]*\}) \S+$"
    shown = rng.randint(1, waiting) if waiting else 0
    return re.sub(queue, rb"\g<1> %d.0" % shown, body, flags=re.MULTILINE)


def only(body: bytes, names: list[str]) -> bytes:
    """Return the lines of the series called `names`, with their help."""
    wanted = tuple(
        f"{mark}{name}{end}".encode() for name in names for mark in ("", "# HELP ", "# TYPE ") for end in "{ "
    )
    return b"".join(line for line in body.splitlines(keepends=True) if line.startswith(wanted))


def answer(body: bytes) -> bytes:
    """Return the body as an HTTP response."""
    return _HEAD.format(len(body)).encode() + body


class Engines:
    """Prepared answers, so that the servers cost little beside what is measured."""

    def __init__(self, body: bytes, *, waiting: int, filters: bool) -> None:
        rng = random.Random(1)
        self._bodies = [with_other_numbers(body, rng, waiting=waiting) for _ in range(VARIANTS)]
        self._answers = [answer(each) for each in self._bodies]
        self._by_target: dict[bytes, list[bytes]] = {}
        self._filters = filters

    def answer(self, target: bytes, number: int) -> bytes:
        """Return response number `number` to a request for `target`."""
        if not self._filters or b"?" not in target:
            return self._answers[number % VARIANTS]
        if target not in self._by_target:
            names = parse_qs(urlsplit(target.decode()).query).get("name[]", [])
            self._by_target[target] = [answer(only(body, names)) for body in self._bodies]
        return self._by_target[target][number % VARIANTS]


class Server(asyncio.Protocol):
    """One engine's connection."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines
        self._transport: asyncio.WriteTransport
        self._buffer = b""
        self._number = random.randrange(VARIANTS)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.BaseProtocol`."""
        self._transport = cast("asyncio.WriteTransport", transport)  # uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        *requests, self._buffer = (self._buffer + data).split(b"\r\n\r\n")
        for request in requests:
            self._number += 1
            self._transport.write(self._engines.answer(request.split(b" ", 2)[1], self._number))


async def serve(fleet: Sequence[Engines]) -> None:
    """Serve until standard input ends."""
    loop = asyncio.get_running_loop()
    servers = [await loop.create_server(partial(Server, engines), "127.0.0.1", 0) for engines in fleet]
    print(*(server.sockets[0].getsockname()[1] for server in servers), flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--servers", type=int, required=True)
    parser.add_argument("--body", type=Path, required=True)
    parser.add_argument("--waiting", type=int, default=0, help="largest queue shown; 0: idle")
    parser.add_argument("--busy", type=int, help="how many show a queue (all)")
    parser.add_argument("--filter", action="store_true")
    options = parser.parse_args()
    body, n_busy = options.body.read_bytes(), options.servers if options.busy is None else options.busy
    busy = Engines(body, waiting=options.waiting, filters=options.filter)
    idle = Engines(body, waiting=0, filters=options.filter)
    uvloop.run(serve([busy] * n_busy + [idle] * (options.servers - n_busy)))


if __name__ == "__main__":
    main()
