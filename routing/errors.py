"""Errors of routing.

KVAtlasError
└── RoutingError
    ├── PluginLoadError  another package's plugin cannot be used
    ├── RecorderError    the secret of recorded block ids cannot be used
    └── SchedulingError  the configuration's plugins and profiles make no profile
"""

from __future__ import annotations

from collections.abc import Sequence

from ..configs.errors import Problem
from ..events.errors import KVAtlasError


class RoutingError(KVAtlasError):
    """The configured way of routing cannot be built."""


class PluginLoadError(RoutingError):
    """Another package's plugin cannot be used."""


class RecorderError(RoutingError):
    """The secret of recorded block ids cannot be used."""


class SchedulingError(RoutingError):
    """The configuration's plugins and profiles make no profile; `problems` has every reason."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("; ".join(map(str, problems)))
        self.problems = tuple(problems)
