"""The choice of the inbox: the native one, or the one in Python if that cannot be used."""

from __future__ import annotations

import zmq

from .inbox import Inbox, Losses, frame_inbox

try:
    from .native_inbox import NativeInbox
except ImportError:  # installed without a C++ compiler, or pyzmq is not the usual one
    NativeInbox = None  # type: ignore[assignment,misc]


def open_inbox(socket: zmq.Socket[bytes], losses: Losses, max_queued_bytes: int) -> Inbox:
    """Open the inbox of a publisher's socket. Arguments are those of `frame_inbox`."""
    if NativeInbox is not None:
        try:
            return NativeInbox(socket, losses, max_queued_bytes)
        except RuntimeError:
            pass
    return frame_inbox(socket, losses, max_queued_bytes)
