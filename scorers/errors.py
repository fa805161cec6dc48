"""Errors of scoring.

KVAtlasError
└── ScorersError
    ├── RegistryError      a plugin type registered twice, or one that nobody registered
    ├── ParametersError    parameters that a plugin does not take
    ├── ProfileError       a profile that cannot work
    └── NoCandidatesError  a decision asked for without any endpoint
"""

from __future__ import annotations

from typing import NamedTuple

from ..events.errors import KVAtlasError


class UnknownName(NamedTuple):
    """A name that was written, and those that there are."""

    found: str
    known: tuple[str, ...]


class ScorersError(KVAtlasError):
    """Something is wrong with scoring."""


class RegistryError(ScorersError):
    """A plugin type is registered twice or not at all."""


class ParametersError(ScorersError):
    """A plugin was given parameters it does not take.

    Attributes:
        key: the parameter as the configuration writes it, empty when it is not one alone.
        unknown: the name that nothing has, None where something else is wrong.
    """

    def __init__(self, message: str, key: str = "", *, unknown: UnknownName | None = None) -> None:
        super().__init__(
            message if unknown is None else f"{message}; known: {', '.join(unknown.known) or 'none'}"
        )
        self.message, self.key, self.unknown = message, key, unknown


class ProfileError(ScorersError):
    """A profile cannot work."""


class NoCandidatesError(ScorersError):
    """No endpoint to choose from; what to answer then is the caller's business."""
