"""The documentation site: it builds without faults, refuses each kind of fault, and loads nothing from elsewhere."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.async_api import expect

from support.browser import chromium, open_page
from support.tree import ROOT

pytestmark = pytest.mark.slow

BUILD = (sys.executable, str(ROOT / "scripts" / "docs_site.py"))
"""The command of `make docs`; with a folder it builds that folder's pages."""

CONFIGURATION = """
[project]
site_name = "x"
docs_dir = "docs"
site_dir = "build/site"
nav = ["README.md", {{"More" = [{{"Second" = "second.md"}}{more}]}}]
[project.theme]
font = {font}
[project.markdown_extensions."repository_links:RepositoryLinks"]
"""
PAGE = "# One\n\n[two](second.md#a-heading) [code](../setup.py) [file](data.txt) ![picture](a.svg)\n"


def built(folder: Path) -> tuple[int, str]:
    """Build the site of `folder`; return exit status and output."""
    done = subprocess.run([*BUILD, str(folder)], check=False, text=True, stdout=-1, stderr=subprocess.STDOUT)
    return done.returncode, done.stdout


def write_pages(folder: Path, page: str = PAGE, *, more: str = "", font: str = "false") -> None:
    """Write a site of two pages."""
    docs = folder / "docs"
    docs.mkdir()
    (folder / "zensical.toml").write_text(CONFIGURATION.format(more=more, font=font))
    (docs / "README.md").write_text(page)
    (docs / "second.md").write_text("# Two\n\n## A heading\n")
    (docs / "data.txt").write_text("1\n")
    (docs / "a.svg").write_text('<svg xmlns="http://www.w3.org/2000/svg"/>')


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build this repository's documentation in a temporary folder."""
    folder = tmp_path_factory.mktemp("docs")
    shutil.copytree(
        ROOT / "docs", folder / "docs", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
    )
    shutil.copy(ROOT / "zensical.toml", folder)
    assert built(folder)[0] == 0, built(folder)[1]
    return folder / "build" / "site"


def test_documentation_builds_without_faults(site: Path) -> None:
    assert (site / "index.html").is_file()
    assert (site / "scorers" / "queue-scorer" / "index.html").is_file()


def test_site_shows_the_path_when_a_link_leaves_the_pages(tmp_path: Path) -> None:
    write_pages(tmp_path)

    status, said = built(tmp_path)

    assert status == 0, said
    assert "<code>setup.py</code>" in (tmp_path / "build" / "site" / "index.html").read_text()


@pytest.mark.parametrize(
    ("page", "more", "font", "message"),
    [
        pytest.param("[x](nowhere.md)", "", "false", "page does not exist", id="dead_link"),
        pytest.param("[x](second.md#nowhere)", "", "false", "anchor does not exist", id="dead_anchor"),
        pytest.param("[x](#nowhere)", "", "false", "anchor does not exist", id="dead_anchor_of_the_page"),
        pytest.param("[x](data.csv)", "", "false", "links to data.csv, which does not exist", id="dead_file"),
        pytest.param("![x](b.svg)", "", "false", "links to b.svg, which does not exist", id="dead_picture"),
        pytest.param(PAGE, ', "third.md"', "false", "third.md: named in nav", id="no_such_page"),
        pytest.param(PAGE, ', "second.md"', "false", "second.md: named 2 times", id="page_twice"),
        pytest.param("![x](https://example.com/a.png)", "", "false", "of another origin", id="picture"),
        pytest.param(PAGE, "", '{text = "Inter"}', "of another origin", id="font"),
    ],
)
def test_build_refuses_a_fault(page: str, more: str, font: str, message: str, tmp_path: Path) -> None:
    write_pages(tmp_path, page, more=more, font=font)

    status, said = built(tmp_path)

    assert (status, message in said) == (1, True), said


def test_build_refuses_a_page_outside_the_navigation(tmp_path: Path) -> None:
    write_pages(tmp_path)
    (tmp_path / "docs" / "third.md").write_text("# Three\n")

    status, said = built(tmp_path)

    assert (status, "third.md: no entry of nav names this page" in said) == (1, True), said


@pytest.fixture
def url(site: Path) -> Iterator[str]:
    """Serve the built site; return its address."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the base class
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()
        thread.join()


async def test_browser_finds_pages_and_loads_nothing_from_another_origin(url: str) -> None:
    async with chromium() as browser, open_page(browser, f"{url}scorers/queue-scorer/") as view:
        field = view.page.get_by_placeholder("Search")
        await field.wait_for(state="attached")  # the page's script has started
        await view.page.keyboard.press("Control+k")
        await field.fill("saturation")
        await expect(view.page.get_by_text(re.compile(r"[1-9]\d* result"))).to_be_visible()

        assert (await view.text("h1")).startswith("queue-scorer")
        assert {urlsplit(request.url).netloc for request in view.requests} == {urlsplit(url).netloc}
        assert view.errors == []
