"""The threads of the native transport: one that fails or cannot start, a process that forks, and one that ends beside them."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import grpc
import grpc.aio
import pytest

from kvatlas.api.http2.native import has_http2
from support.ext_proc_client import METHOD
from support.http2 import PREFACE
from support.serve import serving
from support.waiting import until

pytestmark = pytest.mark.skipif(not has_http2(), reason="needs libnghttp2")

MIB = 1 << 20

SERVER = f"""
import asyncio, os, socket, sys
from kvatlas.api.extproc.intake import Intake
from kvatlas.api.http2.context import Limits
from kvatlas.api.http2.listener import Http2Listener

async def main(case):
    listener = Http2Listener("server.extProc", methods={{}}, limits=Limits(1024, n_threads=2), account=Intake())
    port = await listener.start("127.0.0.1", 0)
    case = globals()[case]
    await case(listener, port)

def greeted(port):
    peer = socket.create_connection(("127.0.0.1", port), timeout=30)
    peer.sendall({PREFACE!r})
    assert peer.recv(9)
    return peer

async def forks(listener, port):
    peer = await asyncio.to_thread(greeted, port)
    child = os.fork()
    if child == 0:
        del listener._server, listener._calls
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    (await asyncio.to_thread(greeted, port)).close()
    peer.close()
    await listener.stop(0)

async def ends(listener, port):
    peers = [await asyncio.to_thread(greeted, port) for _ in range(4)]
    sys.exit(7)

asyncio.run(main(sys.argv[1]))
"""

REFUSED = """
import asyncio, resource, signal
from kvatlas.api.errors import ListenError
from kvatlas.api.extproc.intake import Intake
from kvatlas.api.http2.context import Limits
from kvatlas.api.http2.listener import Http2Listener

async def main():
    listener = Http2Listener("server.extProc", methods={}, limits=Limits(1024, n_threads=64), account=Intake())
    n_bytes = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize() + (32 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (n_bytes, n_bytes))  # stacks of a few threads
    try:
        await listener.start("127.0.0.1", 0)
    except ListenError as error:
        print(error)
    await listener.stop(0)
    print(signal.pthread_sigmask(signal.SIG_BLOCK, ()))

asyncio.run(main())
"""


def ended(case: str) -> int:
    """Run one case in a process of its own; returns its exit status."""
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SERVER, case], timeout=60, check=False
    ).returncode


def test_child_of_a_fork_leaves_the_threads_to_its_parent() -> None:
    assert ended("forks") == 0


def test_process_ends_with_its_status_though_threads_still_serve() -> None:
    assert ended("ends") == 7


def test_listener_is_refused_when_a_thread_cannot_be_started() -> None:
    process = subprocess.run(
        [sys.executable, "-c", REFUSED], timeout=60, check=True, capture_output=True, text=True
    )

    refusal, blocked = process.stdout.splitlines()
    assert refusal.startswith(
        "server.extProc: the 64 threads of connections cannot be started: Resource temporarily"
    )
    assert blocked == "set()", "the process would not take the signal to end"


async def test_thread_that_fails_ends_the_process_with_the_reason(tmp_path: Path) -> None:
    config = {"extProc": {"maxBodyBytes": 256 * MIB, "threads": 2}}
    async with serving(config, tmp_path, fails=True) as served:
        n_bytes = address_limit(served.process.pid)
        resource.prlimit(served.process.pid, resource.RLIMIT_AS, (n_bytes, n_bytes))
        options = [("grpc.max_send_message_length", -1)]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{served.ports['extProc']}", options) as channel:
            process: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(METHOD)
            with pytest.raises(grpc.aio.AioRpcError):
                await process(iter([bytes(200 * MIB)])).read()
        await until(lambda: served.process.returncode is not None, what="the end of the process")

    assert "a thread of connections failed: std::bad_alloc" in "\n".join(served.log)


def address_limit(pid: int) -> int:
    """Return a little more than the address space that a process has."""
    n_pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    return n_pages * resource.getpagesize() + 32 * MIB
