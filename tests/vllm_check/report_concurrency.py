"""The section of docs/vllm-check.md on requests at once."""

from __future__ import annotations

from collections.abc import Sequence

from .concurrency import LEVELS, Audit, verdicts
from .tables import table

_TOLERANCE = 0.02
"""Part of the cached tokens by which the sum of the expectations may differ."""
_EXACT_AT_FOUR = 0.95


def concurrency_passed(audits: Sequence[Audit]) -> bool:
    """Whether the sums are close at each level, and nearly all requests are exact at the lowest one."""
    levels = [[each for each in audits if each.level == level] for level in LEVELS]
    if not all(levels):
        return False
    exact = sum(each.exact for each in levels[0]) / len(levels[0])
    return exact >= _EXACT_AT_FOUR and all(abs(_error(level)) <= _TOLERANCE for level in levels)


def render_concurrency(audits: Sequence[Audit]) -> str:
    """Return the section."""
    rows: list[tuple[str, ...]] = []
    for level in LEVELS:
        found = [each for each in audits if each.level == level]
        others = ", ".join(f"{name} {count}" for name, count in verdicts(found).most_common()) or "-"
        rows.append(
            (
                str(level),
                str(len(found)),
                f"{sum(each.exact for each in found) / max(1, len(found)):.1%}",
                str(sum(each.expected for each in found)),
                str(sum(each.cached for each in found)),
                f"{_error(found):+.2%}",
                others,
            )
        )
    return f"""## Requests at once

The same kinds of prompts through Envoy and kvatlas, several at once. Compared is what kvatlas expected at its pick, in its own
[audit](audit.md), with what the engine then found. Between the two other requests are computed, stored and evicted: a prompt
may find what a request that was under way has left (`event_lag`), or miss what was expected of one (`too_early`), or what was
evicted meanwhile (`evicted`).

{table(("at once", "requests", "exact", "expected tokens", "found tokens", "difference", "verdicts of the others"), rows)}"""


def _error(audits: Sequence[Audit]) -> float:
    expected, cached = sum(each.expected for each in audits), sum(each.cached for each in audits)
    return (expected - cached) / max(1, cached)
