"""Errors of the process and its command line.

KVAtlasError
└── AppError
    ├── AskError      a running process cannot be asked
    └── ReplicaError  this process cannot take part among its replicas
"""

from __future__ import annotations

from ..events.errors import KVAtlasError


class AppError(KVAtlasError):
    """The process or a command cannot do what it was started for."""


class AskError(AppError):
    """A running process cannot be asked: no response, or a response that is not kvatlas's."""


class ReplicaError(AppError):
    """This process cannot take part among its replicas: an address, a secret or a password cannot be used."""
