"""The folders of the benchmarks: each imports itself and `common` alone."""

from __future__ import annotations

import pytest

from bench.catalog import MODULES
from support.tree import imports, read, tracked_files

FOLDERS = {path.parts[1] for path in tracked_files() if path.parts[0] == "bench" and len(path.parts) > 2}
FILES = [path for path in tracked_files() if path.parts[0] == "bench" and path.suffix == ".py"]


def imported_folders(folder: str) -> set[str]:
    files = [path for path in FILES if path.parts[1] == folder]
    names = [name for path in files for _, name in imports(read(path), path)]
    return {name.split(".")[2] for name in names if name.startswith("kvatlas.bench.")}


@pytest.mark.parametrize("folder", sorted(FOLDERS - {"results"}))
def test_folder_imports_common_alone(folder: str) -> None:
    assert imported_folders(folder) <= {folder, "common"}


def test_common_is_what_the_folders_share() -> None:
    assert imported_folders("common") == {"common"}
    assert {module.partition(".")[0] for module in MODULES.values()} == FOLDERS - {"common", "results"}
