"""A headless Chromium, and pages that record requests and errors."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import pytest
from PIL import Image
from playwright.async_api import Browser, BrowserContext, Page, Request, async_playwright, expect

from support.programs import find_program
from support.waiting import PATIENCE_S

Scheme = Literal["light", "dark"]

WIDE, NARROW = (1920, 1080), (360, 780)

_PATIENCE_MS = PATIENCE_S * 1000

_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


@asynccontextmanager
async def chromium() -> AsyncGenerator[Browser]:
    """Run a browser; skip the test if none is installed."""
    found = find_program(*_NAMES)
    if found is None:
        pytest.skip(
            "Chromium is missing: `make test-programs` installs Debian's package chromium-headless-shell"
        )
    expect.set_options(timeout=_PATIENCE_MS)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            await browser.close()


MAX_PICTURE_BYTES = 150_000


async def write_picture(page: Page, file: Path) -> None:
    """Write a picture of the visible part of a page, reduced to few colors."""
    taken = Image.open(BytesIO(await page.screenshot())).convert("RGB")
    packed = BytesIO()
    taken.quantize(200, dither=Image.Dither.NONE).save(packed, "PNG", optimize=True)
    assert packed.tell() < MAX_PICTURE_BYTES, f"{file.name}: {packed.tell()} bytes"
    file.write_bytes(packed.getvalue())  # noqa: ASYNC240 - a small file


@dataclass
class PageView:
    """A page, with its requests and errors."""

    page: Page
    errors: list[str] = field(default_factory=list[str])
    """Uncaught errors, and errors and warnings of the console."""
    requests: list[Request] = field(default_factory=list[Request])

    async def text(self, selector: str) -> str:
        """Return the text a user sees in the element."""
        return await self.page.locator(selector).inner_text()

    async def value(self, script: str, *arguments: Any) -> Any:
        """Return the value of a JavaScript expression in the page."""
        return await self.page.evaluate(script, *arguments)


@asynccontextmanager
async def open_page(
    browser: Browser,
    url: str,
    *,
    size: tuple[int, int] = WIDE,
    scheme: Scheme = "light",
    reduced_motion: bool = True,
) -> AsyncGenerator[PageView]:
    """Open `url` in a page with its own session."""
    context: BrowserContext = await browser.new_context(
        viewport={"width": size[0], "height": size[1]},
        color_scheme=scheme,
        reduced_motion="reduce" if reduced_motion else "no-preference",
        locale="en-US",
    )
    try:
        page = await context.new_page()
        page.set_default_timeout(_PATIENCE_MS)
        view = PageView(page)
        page.on("pageerror", lambda error: view.errors.append(str(error)))
        page.on(
            "console",
            lambda said: view.errors.append(said.text) if said.type in ("error", "warning") else None,
        )
        page.on("request", lambda request: view.requests.append(request))  # noqa: PLW0108 - no method of a builtin
        await page.goto(url)
        yield view
    finally:
        await context.close()
