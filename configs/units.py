"""Quantities with units in YAML."""

from __future__ import annotations

import re

DURATION_PATTERN = r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)"
"""Regular expression of a duration, valid in JSON Schema."""

_DURATION = re.compile(DURATION_PATTERN)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class Duration(float):
    """Positive time in seconds, written `50ms`, `2s`, `1m` or `1h`."""

    def __str__(self) -> str:
        return f"{float(self):.12g}s" if self >= 1 else f"{self * 1000:.12g}ms"

    @classmethod
    def parse(cls, text: object) -> Duration:
        """Parse a duration.

        Raises:
            ValueError: `text` is not a string of that form, or is zero.
        """
        match = _DURATION.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise ValueError(f"expected a duration like 50ms, 2s or 1m, got {text!r}")
        seconds = float(match[1]) * _SECONDS[match[2]]
        if seconds <= 0:
            raise ValueError(f"expected a duration above zero, got {text!r}")
        return cls(seconds)
