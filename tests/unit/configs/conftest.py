from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    """Return the path of a configuration file that does not exist yet."""
    return tmp_path / "config.yaml"
