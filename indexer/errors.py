"""Errors of the index.

KVAtlasError
└── IndexerError
    ├── KeyInputError        tokens, keys or sizes that cannot make a prefix
    ├── UnknownEndpointError an endpoint name the index does not know
    ├── CoreMissingError     an index core that is unknown or was not built
    └── SnapshotError        a snapshot that cannot be gone on from
"""

from __future__ import annotations

from ..events.errors import KVAtlasError


class IndexerError(KVAtlasError):
    """Something is wrong with what the index was asked."""


class KeyInputError(IndexerError):
    """Tokens, keys or a block size cannot make a prefix."""


class UnknownEndpointError(IndexerError):
    """No endpoint of that name is registered."""


class CoreMissingError(IndexerError):
    """The index core that was asked for is unknown or was not built."""


class SnapshotError(IndexerError):
    """A snapshot cannot be gone on from.

    `reason` is a short bounded word for counters; the message goes on from the name of the file.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
