"""Errors of the event plane, and the root of every kvatlas error.

KVAtlasError
└── EventsError
    ├── FrameError        a ZMQ message is not [topic, 8-byte sequence, payload]
    ├── WireError         a payload or an event cannot be read
    ├── TopicError        a topic names no endpoint
    ├── ReplayCutError    a reply to a replay request is past a limit
    ├── SnapshotError     a publisher's snapshot cannot be had or used
    └── SubscriptionError an event address cannot be used
        └── SocketLimitError  no more sockets can be opened
"""

from __future__ import annotations

from types import TracebackType

FAILED = "internal_error"
"""Reason of messages whose handling raised an exception that is a bug of ours."""


class KVAtlasError(Exception):
    """Root of the errors that kvatlas raises on purpose; messages are written for people."""


class EventsError(KVAtlasError):
    """Root of the errors of the event plane."""


class FrameError(EventsError):
    """A ZMQ message has the wrong parts."""


class WireError(EventsError):
    """A payload or one event in it cannot be read.

    `reason` is a short bounded word for counters, such as `not_msgpack` or `unknown_tag`.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class TopicError(EventsError):
    """A topic does not name one known endpoint.

    `reason` is a short bounded word for counters: `not_a_topic`, `unknown_endpoint` or `ambiguous_host`.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class ReplayCutError(EventsError):
    """A reply to a replay request is past a limit."""


class SnapshotError(EventsError):
    """A publisher's snapshot cannot be had or used.

    `reason` is a short bounded word for counters, such as `unavailable` or `other_life`.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class SubscriptionError(EventsError):
    """An event address cannot be used."""


class SocketLimitError(SubscriptionError):
    """No more sockets can be opened."""


def describe(error: BaseException) -> str:
    """Return the type of an exception and the place that raised it, without its text: that may print what a peer sent."""
    traceback, innermost = error.__traceback__, None
    while traceback is not None:
        innermost, traceback = traceback, traceback.tb_next
    return f"{type(error).__name__}{_place(innermost)}"


def _place(traceback: TracebackType | None) -> str:
    if traceback is None:
        return ""
    code = traceback.tb_frame.f_code
    file = "/".join(code.co_filename.rsplit("/", 2)[-2:])
    return f" in {code.co_name} ({file}:{traceback.tb_lineno})"
