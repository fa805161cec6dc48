"""Values of flags as Go writes them: switches, durations, sizes."""

from __future__ import annotations

import re

BOOLEANS: dict[str, bool] = {
    **dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True),
    **dict.fromkeys(("0", "f", "F", "FALSE", "false", "False"), False),
}
"""Text -> value of a switch."""

_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)")

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kKmMgG]?)(i?)[bB]?")
_POWER = {"": 0, "k": 1, "m": 2, "g": 3}


def switch(text: str) -> bool:
    """Parse a switch.

    Raises:
        ValueError: neither on nor off.
    """
    if text not in BOOLEANS:
        raise ValueError(f"found {text!r}, expected true or false")
    return BOOLEANS[text]


def seconds(text: str) -> float:
    """Parse a duration such as `50ms`, `1m30s` or `0` to seconds, at least 0.

    Raises:
        ValueError: of no such form, or negative.
    """
    parts = _PART.findall(text)
    if text != "0" and (not parts or "".join(number + unit for number, unit in parts) != text):
        raise ValueError(f"found {text!r}, expected a duration such as 50ms, 30s or 1m30s")
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def size_bytes(text: str) -> int:
    """Parse a size such as `4194304`, `10MiB`, `25MB` or `10Mi` to bytes.

    Raises:
        ValueError: of no such form, or zero.
    """
    match = _SIZE.fullmatch(text)
    n_bytes = 0
    if match is not None:
        n_bytes = int(float(match[1]) * (1024 if match[3] else 1000) ** _POWER[match[2].lower()])
    if not n_bytes:
        raise ValueError(f"found {text!r}, expected a size above zero such as 10MiB or 25MB")
    return n_bytes


def whole_number(text: str) -> int:
    """Parse a whole number of at least 0.

    Raises:
        ValueError: it is none.
    """
    if not (text.isascii() and text.isdecimal()):
        raise ValueError(f"found {text!r}, expected a whole number")
    return int(text)
