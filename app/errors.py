"""Errors of the process and its command line.

KVAtlasError
└── AppError
    └── AskError  a running process cannot be asked
"""

from __future__ import annotations

from ..events.errors import KVAtlasError


class AppError(KVAtlasError):
    """The process or a command cannot do what it was started for."""


class AskError(AppError):
    """A running process cannot be asked: no response, or a response that is not kvatlas's."""
