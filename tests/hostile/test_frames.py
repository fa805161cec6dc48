"""Connections of generated frames, each on a socket of its own, against a running server."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
from collections.abc import AsyncGenerator
from pathlib import Path
from random import Random

import pytest
import pytest_asyncio

from hostile.generators.frames import inputs
from kvatlas.api.http2.native import has_http2
from support.ext_proc import request_headers
from support.ext_proc_client import connected
from support.gateway import FLEET
from support.serve import Served, serving

N_INPUTS, AT_ONCE = 300, 8
MAX_GROWTH_MIB = 40
"""Memory that a few hundred connections may leave behind: allocators keep some."""

pytestmark = [
    pytest.mark.skipif(not has_http2(), reason="the transport of the hot path needs libnghttp2"),
    pytest.mark.asyncio(loop_scope="module"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module", name="served")
async def _served(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Served]:
    config = {"endpoints": FLEET, "extProc": {"transport": "http2"}}
    async with serving(config, tmp_path_factory.mktemp("frames")) as served:
        yield served


def memory_mib(served: Served) -> int:
    status = Path(f"/proc/{served.process.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) // 1024


async def write(port: int, frames: bytes) -> None:
    """Write frames on a connection of its own, and read what comes until the server has nothing more to say."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with contextlib.suppress(OSError):  # it may be closed at any time
        writer.write(frames)
        writer.write_eof()
        async with asyncio.timeout(30):  # a server that says nothing more closes the connection at once
            while await reader.read(1 << 20):
                pass
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def test_generated_connections_leave_a_server_as_it_was(served: Served) -> None:
    port, before = served.ports["extProc"], memory_mib(served)
    connections = inputs(Random(1))
    for _ in range(N_INPUTS // AT_ONCE):
        await asyncio.gather(*(write(port, frames) for frames in itertools.islice(connections, AT_ONCE)))

        async with connected(port) as client:
            assert await client.converse([request_headers(end=True)], []).ended is None
    await served.until_metric("kvatlas_open_streams 0.0")
    await served.until_metric("kvatlas_held_bytes 0.0")
    assert memory_mib(served) - before <= MAX_GROWTH_MIB
    assert not [line for line in served.log if "Traceback" in line or "failed with" in line]
