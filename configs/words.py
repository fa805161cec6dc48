"""Suggestions for unknown names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str], *, label: str = "known") -> str:
    """Return `did you mean 'x'? known: x, y`, without the question if no known name is similar."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{hint}{label}: {', '.join(names) or 'none'}"


def closest(name: str, known: Iterable[str], *, count: int = 3) -> str:
    """Return `closest: x, y, z`, the known names that are most similar, for lists that are too long to show."""
    near = difflib.get_close_matches(name, sorted(known), n=count, cutoff=0.0)
    return f"closest: {', '.join(near)}"
