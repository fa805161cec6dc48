"""Errors of scoring.

KVAtlasError
└── ScorersError
    ├── RegistryError      a plugin type registered twice, or one that nobody registered
    ├── ParametersError    parameters that a plugin does not take
    ├── ProfileError       a profile that cannot work
    └── NoCandidatesError  a decision asked for without any endpoint
"""

from __future__ import annotations

from ..events.errors import KVAtlasError


class ScorersError(KVAtlasError):
    """Something is wrong with scoring."""


class RegistryError(ScorersError):
    """A plugin type is registered twice or not at all."""


class ParametersError(ScorersError):
    """A plugin was given parameters it does not take.

    `key` is the parameter as the configuration writes it, empty when it is not one alone.
    """

    def __init__(self, message: str, key: str = "") -> None:
        super().__init__(message)
        self.key = key


class ProfileError(ScorersError):
    """A profile cannot work."""


class NoCandidatesError(ScorersError):
    """No endpoint to choose from; what to answer then is the caller's business."""
