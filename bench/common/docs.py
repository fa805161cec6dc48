"""Regions of the docs that the benchmarks write.

A page has a region wherever it shows figures:

    <!-- bench:NAME begin -->            everything: where and when it was measured, and all tables
    <!-- bench:NAME/about begin -->      where and when it was measured
    <!-- bench:NAME/TABLE begin -->      one table

A region ends with the same words and `end`. Its text is written from the committed result of the benchmark NAME.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path

from .results import Result, read
from .tables import markdown

FOLDER = Path(__file__).parents[2] / "docs"

_REGION = re.compile(r"(<!-- bench:(\S+) begin -->\n)(.*?)(<!-- bench:\2 end -->)", re.DOTALL)
_MARK = re.compile(r"<!-- bench:")


def pages() -> Iterator[Path]:
    """Yield the pages that have regions."""
    return (page for page in sorted(FOLDER.rglob("*.md")) if _MARK.search(page.read_text()))


def regions(text: str) -> dict[str, str]:
    """Return name and text of every region of a page.

    Raises:
        ValueError: a mark belongs to no region.
    """
    found = {match[2]: match[3] for match in _REGION.finditer(text)}
    if len(_MARK.findall(text)) != 2 * len(found):
        raise ValueError(
            f"a mark without its counterpart, or a region twice; the regions are {sorted(found)}"
        )
    return found


def rendered(text: str, benchmarks: Collection[str]) -> str:
    """Return the text of a page with the regions of these benchmarks written from their committed results."""

    def written(match: re.Match[str]) -> str:
        benchmark, _, part = match[2].partition("/")
        if benchmark not in benchmarks:
            return match[0]
        return f"{match[1]}\n{_part(read(benchmark), part)}\n\n{match[4]}"

    return _REGION.sub(written, text)


def render(benchmarks: Collection[str]) -> list[Path]:
    """Write the regions of these benchmarks on all pages; returns the pages that changed."""
    changed: list[Path] = []
    for page in pages():
        text = page.read_text()
        if (new := rendered(text, benchmarks)) != text:
            page.write_text(new)
            changed.append(page)
    return changed


def _part(result: Result, part: str) -> str:
    if part == "about":
        return result.about
    if part:
        return markdown(result.table(part))
    return "\n\n".join([result.about, *map(markdown, result.tables)])
