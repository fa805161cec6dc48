"""Pages of REST: nothing of other sites runs in their origin."""

from __future__ import annotations

import re
from pathlib import Path

from support.serve import serving


async def test_pages_load_nothing_from_elsewhere_and_their_policy_forbids_it(tmp_path: Path) -> None:
    async with serving({}, tmp_path) as served:
        base = f"http://127.0.0.1:{served.ports['rest']}"
        for path in ("/docs", "/ui"):
            async with served.session.get(base + path) as answer:
                page, policy = await answer.text(), answer.headers["Content-Security-Policy"]
            assert re.findall(r"(?:https?:)?//[\w.-]+\.[a-z]+", page) == [], path
            assert policy.startswith("default-src 'none'; script-src 'self';")
            assert "unsafe" not in policy
            for linked in re.findall(r'(?:href|src)="([^#"]+)"', page):
                assert await served.status(f"/{linked}") == 200, linked
        async with served.session.get(f"{base}/docs") as answer:
            page = await answer.text()
        assert "<script" not in page
        for call in (await served.get("/openapi.json"))["paths"]:
            assert f"{call}</code></h2>" in page
        assert [await served.status(path) for path in ("/redoc", "/docs/oauth2-redirect")] == [404, 404]
