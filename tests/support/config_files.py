"""Configuration files for tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvatlas.configs.errors import ConfigError
from kvatlas.configs.loader import load_config

HEAD = "apiVersion: kvatlas/v1\nkind: KVAtlasConfig\n"
"""First lines of every file; the line after them is line 3."""


def message_of(file: Path) -> str:
    """Return the error of loading `file`, with the name of the file in place of its path."""
    with pytest.raises(ConfigError) as raised:
        load_config(file)
    return str(raised.value).replace(str(file), file.name)
