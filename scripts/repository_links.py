"""Markdown extension of the documentation site for links to files of the repository that are not on the site.

On a code host such a link opens the file. The site shows the file's path in its place.
"""

from __future__ import annotations

import posixpath
from xml.etree.ElementTree import Element, SubElement

from markdown import Extension, Markdown
from markdown.treeprocessors import Treeprocessor
from zensical.extensions.context import ContextPreprocessor

DOCS = "docs"


class PathsForLinks(Treeprocessor):
    """Replacement of links that leave the folder of the pages by the path they lead to."""

    def run(self, root: Element) -> None:
        """Replace the links of one page."""
        context = ContextPreprocessor.from_markdown(self.md)
        folder = posixpath.dirname(context.page.path) if context else ""
        for link in root.iter("a"):
            path = posixpath.normpath(posixpath.join(DOCS, folder, link.get("href", "")))
            if link.get("href", "").startswith("../") and not path.startswith(f"{DOCS}/"):
                show_path(link, path)


def show_path(link: Element, path: str) -> None:
    """Turn `link` into its text with `path` behind it, or into `path` alone if the text names the file."""
    text = "".join(link.itertext())
    link.tag = "span"
    link.attrib.clear()
    if path.endswith(text):
        for child in list(link):
            link.remove(child)
        link.text = ""
        SubElement(link, "code").text = path
    else:
        last = SubElement(link, "span")
        last.text = " ("
        SubElement(last, "code").text = path
        last[-1].tail = ")"


class RepositoryLinks(Extension):
    """Registration of the extension."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802 - the name that Markdown calls
        """Run after inline patterns, which make the links."""
        md.treeprocessors.register(PathsForLinks(md), "repository_links", 15)
