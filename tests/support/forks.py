"""Processes of the `kvatlas` command, forked from one that has imported it: importing is nine tenths of a start."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from .nursery import NUMBER

_NURSERY = Path(__file__).with_name("nursery.py")


class Fork:
    """A `kvatlas` process, as `asyncio.subprocess.Process` shows it.

    Attributes:
        pid: its id.
        stderr: what it writes.
    """

    def __init__(self, pid: int, status: asyncio.StreamReader, stderr: asyncio.StreamReader) -> None:
        self.pid, self.stderr = pid, stderr
        self._status = asyncio.create_task(status.read())  # to the end, which closes the pipe

    @property
    def returncode(self) -> int | None:
        """Its exit status, negative for the signal that killed it; None while it runs."""
        return _number(self._status.result()) if self._status.done() else None

    def send_signal(self, number: int) -> None:
        """Signal it if it still runs."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it by force."""
        self.send_signal(signal.SIGKILL)

    async def wait(self) -> int:
        """Return its exit status once it has ended."""
        return _number(await asyncio.shield(self._status))


async def fork(*arguments: str, environment: Mapping[str, str] | None = None) -> Fork:
    """Run `kvatlas` with these arguments, in the folder of this process and in its environment if none is given."""
    # the folder and the environment are this process's at this time, not at the start of the nursery
    request = {"arguments": arguments, "environment": dict(environment or os.environ), "folder": os.getcwd()}  # noqa: PTH109
    (status, their_status), (stderr, their_stderr) = os.pipe(), os.pipe()
    try:
        # one small message each; a nursery that has ended raises BrokenPipeError
        socket.send_fds(_nursery()[1], [json.dumps(request).encode()], [their_status, their_stderr])
    finally:
        os.close(their_status)
        os.close(their_stderr)
    statuses, written = await _reader(status), await _reader(stderr)
    return Fork(_number(await statuses.readexactly(NUMBER.size)), statuses, written)


def lasting() -> set[int]:
    """Return the ids of processes that last from test to test; their children are a test's."""
    return {_nursery()[0].pid} if _nursery.cache_info().currsize else set()


@functools.cache
def _nursery() -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start the process that forks, once for all tests; it ends with this one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, "-P", str(_NURSERY), str(theirs.fileno())]
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
    return process, ours


async def _reader(descriptor: int) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    pipe = os.fdopen(descriptor, "rb", buffering=0)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    return reader


def _number(packed: bytes) -> int:
    number: int = NUMBER.unpack(packed)[0]
    return number
