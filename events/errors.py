"""Errors of the event plane, and the root of every kvatlas error.

KVAtlasError
└── EventsError
    ├── FrameError        a ZMQ message is not [topic, 8-byte sequence, payload]
    ├── WireError         a payload or an event cannot be read
    ├── TopicError        a topic names no endpoint
    └── SubscriptionError an event address cannot be used
        └── SocketLimitError  no more sockets can be opened
"""

from __future__ import annotations


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


class SubscriptionError(EventsError):
    """An event address cannot be used."""


class SocketLimitError(SubscriptionError):
    """No more sockets can be opened."""
