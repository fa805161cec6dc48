"""Build of the documentation site, strict: `python scripts/docs_site.py [FOLDER]`, FOLDER with zensical.toml and docs/.

Ends with status 1 and names what is wrong: a dead link or anchor, a page that the navigation leaves out or names twice,
a resource of another origin. Zensical checks links between pages; the rest is checked here, links in the result.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

SITE = "http://site.invalid"
"""Origin that pages are taken to have, so that their links can be resolved."""

LOADING = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "audio": "src"}
LOADING_RELATIONS = {
    "stylesheet",
    "icon",
    "preload",
    "modulepreload",
    "prefetch",
    "preconnect",
    "dns-prefetch",
}
CSS_ADDRESS = re.compile(r"(?:url\(|@import)\s*['\"]?((?:https?:)?//[^'\")\s]+)")


class PageReader(HTMLParser):
    """Anchors, links and loaded resources of one HTML page."""

    def __init__(self) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect what the tag names."""
        found = {name: value for name, value in attrs if value}
        self.anchors.update(found[name] for name in ("id", "name") if name in found)
        if tag == "link" and LOADING_RELATIONS & set(found.get("rel", "").split()):
            self.loaded.append(found.get("href", ""))
        elif tag in LOADING:
            self.loaded.append(found.get(LOADING[tag], ""))
        elif tag == "a" and "href" in found:
            self.links.append(found["href"])


Navigation = str | dict[str, "Navigation"] | list["Navigation"]
"""Value of `nav` in zensical.toml: a page, sections or pages by their titles, or a list of these."""


def pages_in(navigation: Navigation) -> Iterator[str]:
    """Return the pages that a navigation names, in their order."""
    match navigation:
        case str():
            yield navigation
        case dict():
            for entry in navigation.values():
                yield from pages_in(entry)
        case _:
            for entry in navigation:
                yield from pages_in(entry)


def navigation_faults(project: dict[str, Any], docs: Path) -> Iterator[str]:
    """Compare the navigation with the pages there are."""
    named = Counter(pages_in(project["nav"]))
    there = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")}
    yield from (f"{page}: no entry of nav names this page" for page in sorted(there - set(named)))
    yield from (f"{page}: named in nav, but there is no such page" for page in sorted(set(named) - there))
    yield from (f"{page}: named {count} times in nav" for page, count in named.items() if count > 1)


def read_page(path: Path) -> PageReader:
    """Read one built page."""
    reader = PageReader()
    reader.feed(path.read_text(encoding="utf-8"))
    return reader


def file_of(site: Path, path: str) -> Path:
    """Return the file that a server sends for `path`."""
    file = site / unquote(path).lstrip("/")
    return file / "index.html" if path.endswith("/") else file


def site_faults(site: Path) -> Iterator[str]:
    """Name dead links and resources of other origins in the built site."""
    pages = {path: read_page(path) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        name = path.relative_to(site).as_posix()
        for address in page.loaded + page.links:
            target = urlsplit(urljoin(f"{SITE}/{name}", address))
            if f"{target.scheme}://{target.netloc}" != SITE:
                if address in page.loaded and target.scheme != "data":
                    yield f"{name}: loads {address}, which is of another origin"
                continue
            file = file_of(site, target.path)
            if not file.is_file():
                yield f"{name}: links to {address}, which does not exist"
            elif target.fragment and file in pages and unquote(target.fragment) not in pages[file].anchors:
                yield f"{name}: links to {address}, which has no such anchor"
    for style in sorted(site.rglob("*.css")):
        for address in CSS_ADDRESS.findall(style.read_text(encoding="utf-8")):
            yield f"{style.relative_to(site)}: loads {address}, which is of another origin"


def build(folder: Path) -> int:
    """Build the site of `folder` and print what is wrong; return the exit status."""
    project = tomllib.loads((folder / "zensical.toml").read_text(encoding="utf-8"))["project"]
    faults = list(navigation_faults(project, folder / project["docs_dir"]))
    site = folder / project["site_dir"]
    shutil.rmtree(site, ignore_errors=True)
    extensions = str(Path(__file__).parent)  # repository_links.py
    zensical = [str(Path(sys.executable).with_name("zensical")), "build", "--strict", "--clean"]
    environment = {**os.environ, "PYTHONPATH": extensions}
    done = subprocess.run(zensical, cwd=folder, env=environment, check=False)
    shutil.rmtree(folder / ".cache", ignore_errors=True)  # every build is a clean one
    if done.returncode == 0:
        faults += site_faults(site)
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults or done.returncode else 0


if __name__ == "__main__":
    sys.exit(build(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1]))
