"""The dashboard's files: complete, self-contained, and without inline code."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator

import httpx
import pytest
from fastapi import FastAPI

from kvatlas.api.rest.errors import install_error_handlers
from kvatlas.api.rest.ui import is_page, ui_routes
from support.tree import ROOT

FILES = {
    path.name: path.read_text()
    for path in sorted((ROOT / "api" / "ui").iterdir())
    if path.suffix in (".html", ".css", ".js", ".svg")
}
HTML = FILES["index.html"]
IMPORT = re.compile(r'^(?:import|export) .*?from "\./([\w.]+)";$', re.M | re.S)


@pytest.fixture
async def client() -> AsyncGenerator[httpx.AsyncClient]:
    app = FastAPI()
    install_error_handlers(app)
    app.include_router(ui_routes())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as found:
        yield found


@pytest.mark.parametrize("name", FILES)
async def test_file_is_served_under_the_strict_policy(name: str, client: httpx.AsyncClient) -> None:
    answer = await client.get(f"/ui/{name}")

    assert (answer.status_code, answer.content) == (200, FILES[name].encode())
    policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert {policy[each] for each in ("script-src", "style-src", "connect-src", "img-src")} == {"'self'"}
    assert answer.headers["x-content-type-options"] == "nosniff"
    again = await client.get(f"/ui/{name}", headers={"if-none-match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


async def test_page_is_at_ui_and_other_names_are_not(client: httpx.AsyncClient) -> None:
    assert (await client.get("/ui")).text == HTML
    for name in ("nothing.js", "__init__.py", "..%2Fapp.py"):
        answer = await client.get(f"/ui/{name}")
        assert answer.status_code == 404, name


def test_page_and_modules_name_files_that_are_there() -> None:
    named = set(re.findall(r'(?:src|href)="ui/([^"]+)"', HTML))
    for name, text in FILES.items():
        if name.endswith(".js"):
            named |= set(IMPORT.findall(text))
    assert named == FILES.keys() - {"index.html", "reference.css"}  # which /docs names


@pytest.mark.parametrize("name", FILES)
def test_file_names_no_other_origin_and_has_nothing_inline(name: str) -> None:
    text = FILES[name].replace('xmlns="http://www.w3.org/2000/svg"', "")

    assert not re.search(r"https?:|\burl\(|@import|//\w+\.\w", text)
    assert not re.search(r"\bon\w+=|style=|<script(?! type=\"module\" src=)|<style|javascript:", text)
    assert "innerHTML" not in text, "text from a server is never markup"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        pytest.param("/ui", True, id="page"),
        pytest.param("/ui/app.js", True, id="file"),
        pytest.param("/uis", False, id="another"),
        pytest.param("/v1/live", False, id="data"),
    ],
)
def test_page_is_distinguished_from_data(path: str, expected: bool) -> None:
    assert is_page(path) == expected
