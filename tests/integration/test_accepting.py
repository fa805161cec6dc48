"""Acceptance of connections when the process has no descriptor left."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
from collections.abc import Generator
from pathlib import Path

from kvatlas.api.accepting import Accepting
from support.waiting import until


@contextlib.contextmanager
def no_descriptors() -> Generator[None]:
    """Take every descriptor that this process may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(each.name) for each in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 2, hard))
    taken: list[int] = []
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        for each in taken:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_shortage_is_told_only_while_somebody_waits() -> None:
    with contextlib.ExitStack() as stack:
        listening, first, second = (stack.enter_context(socket.socket()) for _ in range(3))
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        accepted: list[socket.socket] = []
        shortages: list[int] = []
        accepting = Accepting(
            listening,
            on_accepted=lambda each: accepted.append(stack.enter_context(each)),
            on_shortage=lambda: shortages.append(len(accepted)),
        )
        stack.callback(accepting.close)
        with no_descriptors():
            first.connect(listening.getsockname())
            await until(lambda: bool(accepted), what="the connection that the spare descriptor is for")
            assert shortages == []
            second.connect(listening.getsockname())
            await until(lambda: bool(shortages), what="a shortage")
            assert len(accepted) == 1
        await until(lambda: len(accepted) == 2, what="the other connection")
