"""docs/configuration.md against the schema: one row per key, with its type, default and docstring."""

from __future__ import annotations

from pathlib import Path

from kvatlas.configs.schema import DEFAULT_TIERS, KVAtlasConfig
from support.tables import key_table

PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"


def test_reference_table_is_the_schema() -> None:
    table = key_table(KVAtlasConfig)

    assert table in PAGE.read_text(), f"the table in {PAGE.name} must read:\n{table}"


def test_default_tiers_are_on_the_page() -> None:
    page = PAGE.read_text()

    for tier in DEFAULT_TIERS:
        assert f"| `{tier.name}` | {', '.join(f'`{medium}`' for medium in tier.media)} |" in page
