"""Words for names that are not known."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str], *, label: str = "known") -> str:
    """`did you mean 'x'? known: x, y`; without the question when nothing is near."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{hint}{label}: {', '.join(names) or 'none'}"
