"""Acceptance of connections when the process has no descriptor left; `hostile/test_descriptors.py` takes real ones away."""

from __future__ import annotations

import contextlib
import errno
import socket

from kvatlas.api.accepting import Accepting
from support.waiting import until


class Scarce(socket.socket):
    """Socket whose `accept` finds only so many descriptors: those of a test's process come and go with its threads."""

    n_free = 0

    def accept(self) -> tuple[socket.socket, object]:
        if not self.n_free:
            raise OSError(errno.EMFILE, "Too many open files")
        self.n_free -= 1
        return super().accept()


async def test_shortage_is_told_only_while_somebody_waits() -> None:
    with contextlib.ExitStack() as stack:
        listening, client = stack.enter_context(Scarce()), stack.enter_context(socket.socket())
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

        client.connect(listening.getsockname())
        await until(lambda: bool(shortages), what="a shortage")
        listening.n_free = 1
        await until(lambda: bool(accepted), what="the connection that waited")

    assert set(shortages) == {0}
