"""Files and folders for results, before the work whose results they get."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvatlas.sim.errors import OutputError
from kvatlas.sim.output_files import check_file, check_folder, writing


def test_file_is_as_before_and_its_folder_is_made(tmp_path: Path) -> None:
    known, new = tmp_path / "known", tmp_path / "a" / "b" / "new"
    known.write_text("kept")

    for file in (known, new):
        check_file("--out", file)

    assert known.read_text() == "kept"
    assert new.parent.is_dir()
    assert not new.exists()


def test_new_file_is_not_there_for_a_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Path] = []

    def note(file: Path, *_: object) -> None:
        opened.append(file)

    monkeypatch.setattr(Path, "open", note)

    check_file("--out", tmp_path / "new")

    assert opened == []


def test_folder_is_made_and_stays_empty(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    for _ in range(2):
        check_folder("--plots", folder)

    assert list(folder.iterdir()) == []


def test_unusable_file_is_named_with_its_option(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(OutputError, match=rf"^--out: {tmp_path} cannot be written: Is a directory$"):
        check_file("--out", tmp_path)
    with pytest.raises(
        OutputError, match=r"^--out: .*/file/x cannot be written: (Not a directory|File exists)$"
    ):
        check_file("--out", tmp_path / "file" / "x")
    with pytest.raises(OutputError, match=r"^--out: .*/x+ cannot be written: File name too long$"):
        check_file("--out", tmp_path / ("x" * 300))
    with pytest.raises(OutputError, match=r"^--plots: .*/file cannot be written: File exists$"):
        check_folder("--plots", tmp_path / "file")
    with pytest.raises(OutputError, match=r"^--plots: /proc/x cannot be written: [A-Z].*$"):
        check_folder("--plots", Path("/proc/x"))


def test_error_of_a_write_is_named_with_its_option(tmp_path: Path) -> None:
    with (
        pytest.raises(OutputError, match=r"--out: .* cannot be written: Is a directory"),
        writing("--out", tmp_path),
    ):
        tmp_path.write_text("")
