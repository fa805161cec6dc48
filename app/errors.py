"""Errors of the process and its command line.

KVAtlasError
└── AppError
    ├── AskError      a running process cannot be asked
    └── ReplicaError  this process cannot take part among its replicas
        ├── TlsFileError   a file for TLS to their server cannot be read
        └── PasswordError  its password cannot be read
"""

from __future__ import annotations

from ..events.errors import KVAtlasError


class AppError(KVAtlasError):
    """The process or a command cannot do what it was started for."""


class AskError(AppError):
    """A running process cannot be asked: no response, or a response that is not kvatlas's."""


class ReplicaError(AppError):
    """This process cannot take part among its replicas: an address, a secret or a password cannot be used."""


class TlsFileError(ReplicaError):
    """A file for TLS to the server between the replicas cannot be read."""


class PasswordError(ReplicaError):
    """The password for the server between the replicas cannot be read."""
