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
