"""What is left after a turn of a connection: it has its next turn at once, not when the time limits are looked at."""

from __future__ import annotations

import asyncio
import select
import socket
import struct

import pytest

from kvatlas.api.extproc.intake import Intake
from kvatlas.api.http2.call import Responder
from kvatlas.api.http2.context import Limits
from kvatlas.api.http2.native import has_http2
from support.ext_proc_client import MAX_WINDOW, PREFACE, Frame
from support.http2 import frame, framed
from support.peer import data, opening, peer_of

pytestmark = pytest.mark.skipif(not has_http2(), reason="needs libnghttp2")

TURN_BYTES = 16 << 18
"""Sent in one turn at most; see connection.cpp."""
LONG = TURN_BYTES + (1 << 20)
ROOM = 3 << 20
"""Of a socket that is not read; with the server's buffer it takes more than a turn sends."""


class Long:
    """A call that answers once, at length; see `Call`."""

    def __init__(self, responder: Responder) -> None:
        self._responder = responder

    def received(self, message: bytes) -> None:
        self._responder.send(message * LONG)

    def passed(self, report: bytes) -> None:
        pass

    def ended(self) -> None:
        pass

    def gone(self) -> None:
        pass


async def test_rest_of_a_turn_is_sent_in_the_next_one() -> None:
    from kvatlas.api.http2.listener import Http2Listener  # noqa: PLC0415 - cannot be imported if it was not built

    intake = Intake()
    listener = Http2Listener(
        "server.extProc", methods={"/test/Long": Long}, limits=Limits(1024, n_threads=1), account=intake
    )
    port = await listener.start("127.0.0.1", 0)
    windows = frame(Frame.SETTINGS, struct.pack(">HI", 4, MAX_WINDOW), 0, 0)
    windows += frame(Frame.WINDOW_UPDATE, struct.pack(">I", MAX_WINDOW - 65_535), 0, 0)
    async with peer_of(port) as other:
        # Now and then a socket is full within the first turn, which announces the next one anyway.
        for _ in range(8):
            with socket.create_connection(("127.0.0.1", port)) as unread:
                # has the kernel make that room
                unread.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, ROOM)
                unread.sendall(PREFACE + windows + opening(1, "/test/Long") + data(1, framed(b".")))
                assert (await asyncio.to_thread(select.select, [unread], [], [], 30))[0], "nothing was sent"
                for _ in range(3):  # the thread serves both connections before it waits
                    await other.ponged()
                intake.refresh_all()
                assert intake.n_bytes == 0
    await listener.stop(0)
