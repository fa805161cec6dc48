"""The page: for each rate what the published arm gave, what its policy gives here, and what other policies give."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from string import Template

from ..page import markdown
from .cases import GUIDE, Results
from .published import LADDERS, Arm, Ladder

_TEMPLATE = Path(__file__).with_name("page.template")
_NAMES = {
    "ttftMean": ("mean TTFT, s", ".2f"),
    "ttftP50": ("median TTFT, s", ".2f"),
    "ttftP90": ("p90 TTFT, s", ".2f"),
    "e2eMean": ("mean end-to-end, s", ".1f"),
    "tokensPerSecond": ("tokens a second", ",.0f"),
    "outputTokensPerSecond": ("generated tokens a second", ",.0f"),
}


def page(results: Results, policies: Sequence[str], *, seeds: int, granularity: int) -> str:
    """Return the whole page; `policies` are those beside the guides'."""
    return Template(_TEMPLATE.read_text()).substitute(
        seeds=seeds,
        granularity=granularity,
        **{ladder.name: ladder_tables(results, ladder, policies) for ladder in LADDERS},
    )


def ladder_tables(results: Results, ladder: Ladder, policies: Sequence[str]) -> str:
    """Return one table per figure, with a row per rate."""
    return "\n\n".join(_table(results, ladder, figure, policies) for figure in ladder.figures)


def _table(results: Results, ladder: Ladder, figure: str, policies: Sequence[str]) -> str:
    title, form = _NAMES[figure]
    heads = [f"{title}; requests a second"]
    for arm in ladder.arms:
        heads += [f"{arm.name}: published", f"`{arm.guide}` here", *(f"`{policy}`" for policy in policies)]
    rows: list[list[str]] = []
    for stage in ladder.stages:
        row = [f"{stage.rate:g}"]
        for arm in ladder.arms:
            row.append(_published(arm, stage.rate, ladder.figures.index(figure), form))
            found = [results[ladder.name, arm.name, policy] for policy in (GUIDE, *policies)]
            row += (format(each[stage.rate][figure], form) for each in found)
        rows.append(row)
    return markdown(heads, rows)


def _published(arm: Arm, rate: float, place: int, form: str) -> str:
    value = arm.published[rate][place]
    return "-" if value is None else format(value, form)
