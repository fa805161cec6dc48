"""Errors of the index.

KVAtlasError
└── IndexerError
    ├── KeyInputError        tokens, keys or a block size are invalid
    ├── UnknownEndpointError an endpoint name is not registered
    ├── CoreMissingError     an index core is unknown or was not built
    └── SnapshotError        a snapshot cannot be used
"""

from __future__ import annotations

from ..events.errors import KVAtlasError


class IndexerError(KVAtlasError):
    """Root of the errors of the index."""


class KeyInputError(IndexerError):
    """Tokens, keys or a block size are invalid."""


class UnknownEndpointError(IndexerError):
    """No endpoint of that name is registered."""


class CoreMissingError(IndexerError):
    """The requested index core is unknown or was not built."""


class SnapshotError(IndexerError):
    """A snapshot cannot be used.

    `reason` is a short bounded word for counters; the message continues a sentence that starts with the file name.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
