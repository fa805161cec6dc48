"""Errors of the check.

CheckError   the check cannot go on; what it finds wrong with kvatlas is a result and no error
"""

from __future__ import annotations

from kvatlas.events.errors import KVAtlasError


class CheckError(KVAtlasError):
    """A part of the check did not start, died, or sent an impossible response."""
