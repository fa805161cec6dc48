"""The dashboard of a fleet whose stages are on different servers: in a browser, over a running process."""

from __future__ import annotations

import pytest
from playwright.async_api import expect

from kvatlas.scorers.filters.roles import ROLE_LABEL
from support.browser import chromium, open_page
from support.fleets import make_endpoint
from support.local_process import LocalProcess, local_process

pytestmark = pytest.mark.slow

ROLES = {"d0": "decode", "p0": "prefill", "p1": "prefill"}
APART = {"uncachedTokens": 16}
ROW = "#decisions-table tbody tr"


def servers(**roles: str) -> list[dict[str, object]]:
    return [
        make_endpoint(name, number, labels={ROLE_LABEL: role})
        for number, (name, role) in enumerate(roles.items(), 1)
    ]


async def newest(process: LocalProcess) -> str:
    async with process.session.get(f"{process.url}/v1/decisions?limit=1") as response:
        return str((await response.json())["decisions"][0]["requestId"])


async def test_every_stage_is_shown_with_its_reason() -> None:
    async with (
        local_process(*servers(**ROLES), disaggregation=APART) as process,
        chromium() as browser,
    ):
        await process.send_requests(1)
        async with open_page(browser, f"{process.url}/ui") as view:
            await expect(view.page.locator("#fleet-table tbody")).to_contain_text("127.0.0.1:2 · prefill")
            row = view.page.locator(ROW).first
            await expect(row).to_contain_text("prefill on p")
            await expect(row).to_contain_text("prefill tie at")  # nothing is known of either
            await row.get_by_role("button").click()
            dialog = view.page.get_by_role("dialog", name=f"Request {await newest(process)}")
            await expect(dialog.get_by_role("heading", level=3)).to_have_text(
                [
                    "decode, profile decode: d0 answers",
                    f"prefill, profile prefill: {await picked(process, 'prefill')}",
                ]
            )
            await expect(dialog.locator("tr.picked")).to_have_count(2)
            await expect(dialog).to_contain_text("computes the prompt, and had 0 of them cached")
            assert view.errors == []


async def picked(process: LocalProcess, stage: str) -> str:
    async with process.session.get(f"{process.url}/v1/decisions?limit=1") as response:
        (name,) = (await response.json())["decisions"][0]["stages"][stage]
        return str(name)


async def test_missing_stage_is_named() -> None:
    async with (
        local_process(*servers(d0="decode"), disaggregation=APART) as process,
        chromium() as browser,
    ):
        await process.send_requests(1)
        async with open_page(browser, f"{process.url}/ui") as view:
            row = view.page.locator(ROW).first
            await expect(row).to_contain_text("no endpoint can do the stage prefill")
            await row.get_by_role("button").click()
            await expect(view.page.locator("#decision-body")).to_contain_text(
                "No endpoint can do the stage prefill."
            )
            assert view.errors == []


async def test_costs_of_placements_are_shown() -> None:
    async with (
        local_process(*servers(**ROLES), policy="latency", disaggregation=APART) as process,
        chromium() as browser,
    ):
        await process.send_requests(1)
        async with process.session.get(f"{process.url}/v1/decisions/{await newest(process)}") as response:
            options = (await response.json())["placement"]["options"]
        assert {(each["prefill"] is None) for each in options} == {True, False}
        async with open_page(browser, f"{process.url}/ui") as view:
            await view.page.locator(ROW).first.get_by_role("button").click()
            shown = view.page.get_by_role("table", name="Placements by cost").locator(
                "tbody tr td:first-child"
            )
            await expect(shown).to_have_text(
                [f"{each['prefill']} → d0" if each["prefill"] else "d0 alone" for each in options]
            )
            assert view.errors == []
