"""What a person reads on the dashboard."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.async_api import Locator

from support.browser import Viewed

MINUS = "\N{MINUS SIGN}"


async def cells(viewed: Viewed, row: str) -> dict[str, str]:
    """Column -> what a person reads in it."""
    found: dict[str, str] = await viewed.page.locator(row).first.evaluate(
        "row => Object.fromEntries([...row.cells].map(cell => [cell.dataset.name, cell.innerText]))"
    )
    return found


def figures(text: str) -> list[float]:
    """The numbers in a text."""
    plain = text.replace(MINUS, "-").replace(",", "")
    return [float(each) for each in re.findall(r"(?<![\w-])-?\d+(?:\.\d+)?", plain)]


def rounded(number: float, digits: int = 2) -> Any:
    """What a text with so many digits says of a number."""
    return pytest.approx(number, abs=0.51 * 10**-digits)


async def drawn(lane: Locator) -> float:
    """How far a lane is filled from its begin on, 0 to 1."""
    end: float = await lane.evaluate(
        "lane => Math.max(0, ...[...lane.children].map(each => each.offsetLeft + each.offsetWidth)) / lane.clientWidth"
    )
    return end
