"""Names from outside on a terminal."""

from __future__ import annotations


def clean(text: str) -> str:
    """Replace control characters in a name that came from outside."""
    return "".join(char if char.isprintable() else "?" for char in text)
