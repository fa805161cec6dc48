"""Errors of the scorers.

KVAtlasError
└── ScorersError
    ├── RegistryError      a plugin type that is registered twice or not at all
    ├── ParametersError    parameters that a plugin does not accept
    ├── ExpressionError    an expression that cannot be read, or has no value
    ├── ProfileError       a profile that cannot work
    └── NoCandidatesError  a decision requested without any endpoint
"""

from __future__ import annotations

from typing import NamedTuple

from ..events.errors import KVAtlasError


class UnknownName(NamedTuple):
    """A name that does not exist, and the names that do."""

    found: str
    known: tuple[str, ...]


class ScorersError(KVAtlasError):
    """Root of the errors of scoring."""


class RegistryError(ScorersError):
    """A plugin type that is registered twice or not at all."""


class ParametersError(ScorersError):
    """Parameters that a plugin does not accept.

    Attributes:
        key: the parameter as written in the configuration, empty if more than one is involved.
        unknown: the name that does not exist, None if something else is wrong.
    """

    def __init__(self, message: str, key: str = "", *, unknown: UnknownName | None = None) -> None:
        super().__init__(
            message if unknown is None else f"{message}; known: {', '.join(unknown.known) or 'none'}"
        )
        self.message, self.key, self.unknown = message, key, unknown


class ExpressionError(ScorersError):
    """An expression that cannot be read, or that has no value."""


class ProfileError(ScorersError):
    """A profile with contradictory or impossible settings."""


class NoCandidatesError(ScorersError):
    """A decision without any endpoint to choose from; the caller decides on the response."""
