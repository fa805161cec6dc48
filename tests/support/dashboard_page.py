"""Text and figures as a user reads them on the dashboard."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from playwright.async_api import Locator, expect

from kvatlas.sim.demo_model import MODEL_NAME
from support.browser import PageView
from support.dashboard import N_SERVERS, Question

MINUS = "\N{MINUS SIGN}"


async def cells(view: PageView, row: str) -> dict[str, str]:
    """Return column -> text of a table row."""
    found: dict[str, str] = await view.page.locator(row).first.evaluate(
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


def shows_endpoint(row: dict[str, str], endpoint: dict[str, Any]) -> bool:
    """Return whether a row of the fleet table shows what the API reports; ages may differ."""
    load = endpoint["load"]
    shown: list[Any] = [row["Endpoint"].split(), row["Trust"].strip()]
    shown += [figures(row[each]) for each in ("Waiting", "Running", "KV used")]
    shown += [figures(row[f"{tier['name']} blocks"]) for tier in endpoint["tiers"]]
    wanted: list[Any] = [[endpoint["name"], endpoint["address"]], "live"]
    wanted += [[load["waiting"]], [load["running"]], [rounded(100 * load["kvUtilization"], 0)]]
    wanted += [
        [tier["residencies"], tier["capacity"], rounded(100 * tier["residencies"] / tier["capacity"], 0)]
        for tier in endpoint["tiers"]
    ]
    return shown == wanted and re.fullmatch(r"[\d.]+ (ms|s|min) ago", row["Last event"]) is not None


async def find_prompt(view: PageView, question: Question) -> None:
    """Paste the chat, and wait for the prefixes of all servers."""
    await view.page.get_by_label("Text, chat messages").fill(json.dumps(question.messages))
    assert await view.text("#prompt-understood") == "Understood as 4 chat messages."
    await view.page.get_by_label("Model").fill(MODEL_NAME)
    await view.page.get_by_role("button", name="Find it").click()
    await expect(view.page.locator(".strips > li")).to_have_count(N_SERVERS)
