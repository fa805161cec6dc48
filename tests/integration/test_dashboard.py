"""The dashboard in a browser, over a fleet that has served real traffic through Envoy."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from typing import Any
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from support.browser import NARROW, WIDE, Scheme, Viewed, chromium, viewing
from support.contrast import hard_to_read
from support.dashboard import Installation, installation, used

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]

ROWS = "#fleet-table tbody tr"
MINUS = "\N{MINUS SIGN}"
DECISIONS = "#decisions-table tbody tr"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncGenerator[Browser]:
    async with chromium() as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def one(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Installation]:
    async with installation(tmp_path_factory.mktemp("installation")) as found:
        await used(found)
        yield found


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


def rounded(number: float) -> Any:
    """What a text with two digits says of a number."""
    return pytest.approx(number, abs=0.0051)


async def test_fleet_shows_what_each_endpoint_holds(one: Installation, browser: Browser) -> None:
    endpoints = (await one.served.get("/v1/endpoints"))["endpoints"]
    async with viewing(browser, f"{one.url}/ui") as viewed:
        await expect(viewed.page.locator(ROWS)).to_have_count(len(endpoints))
        await expect(viewed.page.locator("#connection")).to_have_text("live")
        for number, endpoint in enumerate(endpoints, 1):
            row = await cells(viewed, f"{ROWS}:nth-child({number})")
            assert row["Endpoint"].split() == [endpoint["name"], endpoint["address"]]
            assert row["Trust"].strip() == "live"
            for tier in endpoint["tiers"]:
                held, bound, share = figures(row[f"{tier['name']} blocks"])
                assert (held, bound) == (tier["residencies"], tier["capacity"])
                assert share == round(100 * held / bound)
            assert re.fullmatch(r"[\d.]+ (ms|s|min) ago", row["Last event"])
        assert "4 endpoints · 4 live" in await viewed.text("#fleet-facts")


async def test_decision_tells_why_that_server(one: Installation, browser: Browser) -> None:
    newest = (await one.served.get("/v1/decisions?limit=1"))["decisions"][0]
    decision: dict[str, Any] = await one.served.get(f"/v1/decisions/{newest['requestId']}")
    ranked = sorted(decision["endpoints"], key=lambda each: -each["total"])
    async with viewing(browser, f"{one.url}/ui") as viewed:
        request = viewed.page.get_by_role("button", name=newest["requestId"])
        row = await cells(viewed, f"{DECISIONS}:has(button:text-is('{newest['requestId']}'))")
        assert row["Endpoint"] == decision["picked"][0] == ranked[0]["name"]
        assert figures(row["Total"]) == [rounded(ranked[0]["total"])]
        gains = {
            ours["name"].removesuffix("-scorer"): ours["product"] - theirs["product"]
            for ours, theirs in zip(ranked[0]["scores"], ranked[1]["scores"], strict=True)
        }
        told, _, rival = row["Why"].partition(" against ")
        assert ranked[1]["total"] == next(each["total"] for each in ranked if each["name"] == rival)
        assert told == ", ".join(
            f"{name} {f'{gain:+.2f}'.replace('-', MINUS)}"
            for name, gain in sorted(gains.items(), key=lambda item: -item[1])
            if abs(gain) >= 0.005
        )

        await request.focus()
        await viewed.page.keyboard.press("Enter")
        dialog = viewed.page.get_by_role("dialog", name=f"Request {newest['requestId']}")
        rows = dialog.locator("tbody tr")
        await expect(rows).to_have_count(len(ranked))
        shown = [
            await cells(viewed, f"#decision-body tbody tr:nth-child({n + 1})") for n in range(len(ranked))
        ]
        assert [figures(each["Total"])[0] for each in shown] == [rounded(each["total"]) for each in ranked]
        assert "picked" in shown[0]["Endpoint"]
        by_name = {each["name"]: each for each in ranked}
        for each in shown:
            endpoint = by_name[each["Endpoint"].split()[0]]
            for term in endpoint["scores"]:
                product, score, weight = figures(each[term["name"].removesuffix("-scorer")])[:3]
                assert (product, score) == (rounded(term["product"]), rounded(term["score"]))
                assert weight == term["weight"]
        if decision["counterfactual"]:
            assert decision["counterfactual"]["scorer"] in await dialog.inner_text()
        await viewed.page.keyboard.press("Escape")
        await expect(dialog).to_be_hidden()
        await expect(request).to_be_focused()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [pytest.param(WIDE, id="wide"), pytest.param(NARROW, id="narrow")])
async def test_page_fits_is_legible_and_asks_nobody_else(
    size: tuple[int, int], scheme: Scheme, one: Installation, browser: Browser
) -> None:
    async with viewing(browser, f"{one.url}/ui", size=size, scheme=scheme) as viewed:
        await expect(viewed.page.locator(DECISIONS).first).to_be_visible()
        await expect(viewed.page.locator(ROWS).first).to_be_visible()
        for selector in ("", DECISIONS):
            if selector:
                await viewed.page.locator(selector).get_by_role("button").first.click()
                await expect(viewed.page.locator("#decision-body tbody tr").first).to_be_visible()
            assert await viewed.value("document.documentElement.scrollWidth") == size[0]
            looked, hard = await hard_to_read(viewed.page)
            assert looked > 100
            assert hard == []
        assert {urlsplit(request.url).netloc for request in viewed.requests} == {urlsplit(one.url).netloc}
        assert viewed.errors == []
