"""The page: our policy beside the others, and all figures of each case."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from string import Template

from .cases import GRANULARITY, WARM_UP, Measured

_TEMPLATE = Path(__file__).with_name("page.template")
_WITHIN = 1.02
"""Factor up to which a figure counts as equal."""

_SINGLE = ("reference", "threshold", "always", "never")
"""Policies that ours is compared with one by one."""

_TABLES = (
    ("Seconds to the first token, mean / p99", (("ttftMean", ".2f", 1.0), ("ttftP99", ".1f", 1.0))),
    (
        "Milliseconds per further token / prompt tokens found, % / prompts computed on prefill servers, %",
        (("tpotMean", ".0f", 1000.0), ("hitRate", ".0f", 100.0), ("prefilledElsewhere", ".0f", 100.0)),
    ),
)


def page(found: Sequence[Measured], *, ours: str, seeds: int, limit: int) -> str:
    """Return the whole page."""
    names = list(dict.fromkeys(each.workload.name.partition("/")[0] for each in found))
    return Template(_TEMPLATE.read_text()).substitute(
        seeds=seeds,
        limit=limit,
        granularity=GRANULARITY,
        warm_up=WARM_UP,
        ours=ours,
        verdict=verdict_table(found, ours),
        n_cases=len(found),
        n_best=sum(_to_best(each, ours, "ttftMean") <= _WITHIN for each in found),
        n_best_p99=sum(_to_best(each, ours, "ttftP99") <= _WITHIN for each in found),
        sections="\n\n".join(_section(name, found) for name in names),
    )


def verdict_table(found: Sequence[Measured], ours: str) -> str:
    """Return how the times of our policy compare with those of the others, in percent."""
    singles = [name for name in _SINGLE if name in found[0].figures]
    rows = (
        [
            *_case(each),
            _percent(_to_best(each, ours, "ttftMean")),
            _percent(_to_best(each, ours, "ttftP99")),
            *(_percent(_ratio(each, ours, name, "ttftMean")) for name in singles),
        ]
        for each in found
    )
    heads = ["workload", "P:D", "load", "mean", "p99", *(f"mean, {name}" for name in singles)]
    return _markdown(heads, rows)


def _section(name: str, found: Sequence[Measured]) -> str:
    mine = [each for each in found if each.workload.name.partition("/")[0] == name]
    policies = list(mine[0].figures)
    parts = [f"### {name}"]
    for title, figures in _TABLES:
        rows = (
            [
                *_case(each)[1:],
                *(
                    " / ".join(
                        format(factor * each.figures[policy][key], form) for key, form, factor in figures
                    )
                    for policy in policies
                ),
            ]
            for each in mine
        )
        parts += [f"{title}:", _markdown(["P:D", "load", *policies], rows)]
    return "\n\n".join(parts)


def _case(each: Measured) -> list[str]:
    workload, _, place = each.workload.name.partition("/")
    return [workload, place, f"{each.load:g}"]


def _to_best(each: Measured, ours: str, name: str) -> float:
    best = min(figures[name] for policy, figures in each.figures.items() if policy != ours)
    return each.figures[ours][name] / best


def _ratio(each: Measured, ours: str, other: str, name: str) -> float:
    return each.figures[ours][name] / each.figures[other][name]


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.0f} %"


def _markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    rule = ["---", *("---:" for _ in heads[1:])]
    return "\n".join(f"| {' | '.join(row)} |" for row in (heads, rule, *rows))
