from __future__ import annotations

from pathlib import Path

import pytest

from support.models import make_models


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """See `make_models`."""
    return make_models(tmp_path_factory.mktemp("models"))
