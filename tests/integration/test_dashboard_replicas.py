"""The dashboard's section of replicas, in a browser over a running process."""

from __future__ import annotations

import pytest
from playwright.async_api import Route, expect

from support.browser import NARROW, WIDE, Scheme, chromium, open_page
from support.contrast import hard_to_read
from support.dashboard_page import cells
from support.fleets import make_endpoint
from support.local_process import local_process
from support.shown_replicas import FIVE, other, replicas_answer

pytestmark = pytest.mark.slow

LOOKS: tuple[tuple[tuple[int, int], Scheme], ...] = ((WIDE, "light"), (NARROW, "dark"))
ROWS = "#replicas-table tbody tr"
ASK = "document.dispatchEvent(new Event('visibilitychange'))"
"""Has the page ask at once, not only after its next interval."""


async def test_replicas_are_shown_with_their_state_at_any_width() -> None:
    said, picks = replicas_answer(other("kvatlas-0")), {"heardPicks": 4200, "concurrentPicks": 12}

    async def replicas(route: Route) -> None:
        await route.fulfill(json=said.model_dump(by_alias=True) | picks)

    async with local_process(make_endpoint("a", 1)) as process, chromium() as browser:
        async with open_page(browser, f"{process.url}/ui") as view:
            await expect(view.page.locator("#fleet-table table")).to_be_visible()
            await expect(view.page.locator("#replicas")).to_be_hidden()

            await view.page.route("**/v1/replicas", replicas)
            await view.value(ASK)
            await expect(view.page.locator("#replicas-facts")).to_have_text(
                "1 other heard by mesh; 0.3 % of their picks crossed own ones"
            )
            rows = view.page.locator(ROWS)
            await expect(rows).to_have_count(2)
            await expect(rows.nth(1)).to_contain_text("this replica")
            assert await cells(view, ROWS) == {
                "Replica": "kvatlas-0\nkvatlas 0.1.0", "State": "live", "Heard": "120 ms ago",
                "Received": "20.0 KiB", "Configuration": "generation 3, the same",
            }  # fmt: skip

            said, picks = FIVE, {}
            await view.value(ASK)
            await expect(rows).to_have_count(5)
            await expect(view.page.locator("#replicas-link")).to_have_text("Replicas: 2 not heard")
            await expect(view.page.locator("#replicas-facts")).to_have_text(
                "2 others heard by mesh, 1 with another configuration"
            )
            await expect(rows.nth(3)).to_contain_text("4 messages missing, and asked for again")
            await expect(rows.nth(3)).to_contain_text("generation 2, another")
            await expect(rows.nth(4)).to_contain_text("75 s ago")
            await expect(rows.first).to_contain_text("a replica speaks version 2 of the protocol")

            said = replicas_answer(problem="the server's certificate is refused")
            await view.value(ASK)
            await expect(view.page.locator("#replicas-problem")).to_have_text(
                "the server's certificate is refused"
            )
            await expect(view.page.locator("#replicas-facts")).to_have_text(
                "0 others heard by mesh: this replica decides alone"
            )
            assert view.errors == []

        said = FIVE
        for size, scheme in LOOKS:
            async with open_page(browser, "about:blank", size=size, scheme=scheme) as view:
                await view.page.route("**/v1/replicas", replicas)
                await view.page.goto(f"{process.url}/ui")
                await expect(view.page.locator(ROWS)).to_have_count(5)
                assert await view.value("document.documentElement.scrollWidth") == size[0]
                assert (await hard_to_read(view.page))[1] == []
