"""`grpc-timeout`: the deadline of a call."""

from __future__ import annotations

import re

_FORM = re.compile(r"(\d{1,8})([HMSmun])")
_SECONDS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}


def timeout_s(header: str) -> float | None:
    """Return seconds, None if the header is missing or malformed. Source: gRPC over HTTP/2, `Timeout`."""
    found = _FORM.fullmatch(header)
    return int(found[1]) * _SECONDS[found[2]] if found else None
