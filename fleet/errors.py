"""Errors of the fleet.

KVAtlasError
└── FleetError
    ├── AlreadyRegisteredError  an instance or rank is registered already, as something else
    ├── NotRegisteredError      no such instance or rank is registered
    └── ConfigRefusedError      a configuration cannot be put in force while the process runs
"""

from __future__ import annotations

from ..events.errors import KVAtlasError


class FleetError(KVAtlasError):
    """A change of the fleet cannot be made."""


class AlreadyRegisteredError(FleetError):
    """An instance or rank is registered already, as something else."""


class NotRegisteredError(FleetError):
    """No such instance or rank is registered."""


class ConfigRefusedError(FleetError):
    """A configuration cannot be put in force while the process runs; the former one stays."""
