"""Errors of the fleet.

KVAtlasError
└── FleetError
    ├── AlreadyRegisteredError  an instance or rank is registered with different data
    ├── TooManyRegisteredError  no more ranks can be registered
    ├── NotRegisteredError      an instance or rank is not registered
    └── ConfigRefusedError      a configuration cannot be applied while the process runs
"""

from __future__ import annotations

from ..events.errors import KVAtlasError


class FleetError(KVAtlasError):
    """A change of the fleet cannot be made."""


class AlreadyRegisteredError(FleetError):
    """An instance or rank is registered with different data."""


class TooManyRegisteredError(FleetError):
    """No more ranks can be registered."""


class NotRegisteredError(FleetError):
    """An instance or rank is not registered."""


class ConfigRefusedError(FleetError):
    """A configuration cannot be applied while the process runs; the former one stays in use."""
