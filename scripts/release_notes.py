"""Release notes of one version: its section of CHANGELOG.md, on stdout.

Use: python scripts/release_notes.py v1.2.3

The tag must be the version in pyproject.toml. The heading is `## [1.2.3] - 2026-01-31`; brackets and date may be missing.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

HEADING = re.compile(r"^## ", re.MULTILINE)
LINK_DEFINITION = re.compile(r"^\[[^\]]+\]: .*\n?", re.MULTILINE)


def notes(changelog: str, version: str) -> str:
    """Return the section of `version` without its heading.

    Raises:
        ValueError: there is no such section, or it is empty.
    """
    heading = re.compile(rf"\[?{re.escape(version)}\]?(?: - \d{{4}}-\d{{2}}-\d{{2}})?\s*")
    for section in HEADING.split(changelog)[1:]:
        first, _, text = section.partition("\n")
        if heading.fullmatch(first):
            text = LINK_DEFINITION.sub("", text).strip()
            if text:
                return text + "\n"
            raise ValueError(f"the section {version} of the changelog is empty")
    raise ValueError(f"the changelog has no section `## [{version}] - YYYY-MM-DD`")


def main(tag: str, folder: Path) -> str:
    """Return the notes of a tag, from the changelog in `folder`.

    Raises:
        ValueError: there are none, or the tag is not the version that would be built.
    """
    version = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["version"]
    if tag != f"v{version}":
        raise ValueError(f"the tag is {tag}, but pyproject.toml has version {version}: want v{version}")
    return notes((folder / "CHANGELOG.md").read_text(), version)


if __name__ == "__main__":
    try:
        sys.stdout.write(main(sys.argv[1], Path(__file__).parents[1]))
    except ValueError as error:
        sys.exit(f"release notes: {error}")
