"""docs/configuration.md against the schema: one row per key, with its type, default and docstring."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvatlas.configs.changes import ENTRY, LIVE
from kvatlas.configs.errors import ConfigError
from kvatlas.configs.loader import load_file
from kvatlas.configs.schema import DEFAULT_TIERS, KVAtlasConfig
from support.tables import key_table

PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"

BROKEN = """\
kind: KVAtlasConfig
apiVersion: kvatlas/v1

# a word that is nearly right
weight: {queue: 3}
endpoints:
  static:
  - {name: a, address: "10.0.0.1:8000"}
  - {name: b}

metricsScrape: {interval: 50}
"""
"""File with the errors that the page shows."""


def test_reference_table_is_the_schema() -> None:
    table = key_table(KVAtlasConfig)

    assert table in PAGE.read_text(), f"the table in {PAGE.name} must read:\n{table}"


def test_default_tiers_are_on_the_page() -> None:
    page = PAGE.read_text()

    for tier in DEFAULT_TIERS:
        assert f"| `{tier.name}` | {', '.join(f'`{medium}`' for medium in tier.media)} |" in page


def test_errors_on_the_page_are_those_that_are_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = Path("kvatlas.yaml")
    file.write_text(BROKEN)

    with pytest.raises(ConfigError) as raised:
        load_file(file)

    assert f"```\n{raised.value}\n```" in PAGE.read_text(), f"the example must read:\n{raised.value}"


def test_page_of_live_changes_names_every_key_that_changes_live() -> None:
    page = (PAGE.parent / "live-changes.md").read_text()
    table = page.partition("## What changes live")[2].partition("Everything else")[0]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    named = {key for cell in cells for key in re.findall(r"`([\w.\[\]]+)`", cell)}
    assert named == {".".join(path).replace(f".{ENTRY}", ENTRY) for path in LIVE}
