"""Text and figures as a user reads them on the dashboard."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.async_api import Locator

from support.browser import Viewed

MINUS = "\N{MINUS SIGN}"


async def cells(viewed: Viewed, row: str) -> dict[str, str]:
    """Return column -> text of a table row."""
    found: dict[str, str] = await viewed.page.locator(row).first.evaluate(
        "row => Object.fromEntries([...row.cells].map(cell => [cell.dataset.name, cell.innerText]))"
    )
    return found


def figures(text: str) -> list[float]:
    """Return the numbers in a text."""
    plain = text.replace(MINUS, "-").replace(",", "")
    return [float(each) for each in re.findall(r"(?<![\w-])-?\d+(?:\.\d+)?", plain)]


def rounded(number: float, digits: int = 2) -> Any:
    """Return a matcher for a number that the page shows with `digits` decimals."""
    return pytest.approx(number, abs=0.51 * 10**-digits)


async def drawn(lane: Locator) -> float:
    """Return the filled share of a lane, from its start, 0 to 1."""
    end: float = await lane.evaluate(
        "lane => Math.max(0, ...[...lane.children].map(each => each.offsetLeft + each.offsetWidth)) / lane.clientWidth"
    )
    return end
