"""Changes that FileWatch reports."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kvatlas.configs.file_watch import FileWatch


def settled(watch: FileWatch, count: int = 3) -> list[bool]:
    return [watch.settled() for _ in range(count)]


def changed(watch: FileWatch, count: int = 3) -> list[bool]:
    return [watch.changed() for _ in range(count)]


def write(path: Path, text: str) -> None:
    """Write in place, with a new time stamp whatever the resolution of the file system."""
    stamp = path.stat().st_mtime_ns if path.exists() else 0
    path.write_text(text)
    os.utime(path, ns=(stamp + 10**9, stamp + 10**9))


def replace(path: Path, text: str) -> None:
    """Replace the file as editors and `mv` do."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.rename(path)


def swap_config_map(path: Path, text: str) -> None:
    """Replace the link `..data`, which leads to a folder, as the kubelet does in a mounted ConfigMap."""
    folder = path.parent / f"..{text}"
    folder.mkdir()
    (folder / path.name).write_text(text)
    (path.parent / "..tmp").symlink_to(folder.name)
    (path.parent / "..tmp").rename(path.parent / "..data")


def swap_folder(path: Path, text: str) -> None:
    """Replace the folder of the file, which is a link."""
    folder = path.parent.parent / text
    folder.mkdir()
    (folder / path.name).write_text(text)
    link = path.parent.parent / "next"
    link.symlink_to(folder)
    link.rename(path.parent)


@pytest.fixture(params=["in_place", "replaced", "config_map", "folder"])
def changing(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Callable[[Path, str], None]]:
    """Return a file that says `one`, and a function that changes it."""
    path = tmp_path / "file.yaml"
    match request.param:
        case "config_map":
            swap_config_map(path, "one")
            path.symlink_to("..data/file.yaml")
            return path, swap_config_map
        case "folder":
            (tmp_path / "one").mkdir()
            (tmp_path / "current").symlink_to(tmp_path / "one")
            path = tmp_path / "current" / "file.yaml"
            write(path, "one")
            return path, swap_folder
        case way:
            write(path, "one")
            return path, write if way == "in_place" else replace


def test_change_is_reported_once_however_it_is_made(
    changing: tuple[Path, Callable[[Path, str], None]],
) -> None:
    path, change = changing
    careful, quick = FileWatch(path), FileWatch(path)
    assert (settled(careful), changed(quick)) == ([False, True, False], [True, False, False])

    change(path, "two")

    assert path.read_text() == "two"
    assert (settled(careful), changed(quick)) == ([False, True, False], [True, False, False])


def test_growing_file_is_reported_when_it_has_stopped(tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    write(path, "")
    watch = FileWatch(path)
    reported: list[bool] = settled(watch)
    for text in ("a", "ab", "abc"):
        write(path, text)
        reported.append(watch.settled())
    reported += settled(watch)

    assert reported == [False, True, False, False, False, False, True, False, False]


def test_change_that_is_undone_between_two_calls_is_reported_by_its_time(tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    write(path, "one")
    watch = FileWatch(path)
    settled(watch)
    write(path, "two")
    write(path, "one")

    assert settled(watch) == [False, True, False]


def test_file_that_vanishes_or_appears_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    careful, quick = FileWatch(path), FileWatch(path)
    assert (settled(careful), changed(quick)) == ([False, True, False], [True, False, False])
    write(path, "one")
    assert (settled(careful), changed(quick)) == ([False, True, False], [True, False, False])
    path.unlink()
    assert (settled(careful), changed(quick)) == ([False, True, False], [True, False, False])


def test_file_below_a_file_is_missing(tmp_path: Path) -> None:
    write(tmp_path / "file.yaml", "one")
    watch = FileWatch(tmp_path / "file.yaml" / "more.yaml")

    assert (watch.changed(), watch.reported) == (True, ())


@pytest.mark.parametrize("look", [settled, changed])
def test_marked_state_is_not_reported(tmp_path: Path, look: Callable[[FileWatch], list[bool]]) -> None:
    path = tmp_path / "file.yaml"
    write(path, "one")
    watch = FileWatch(path)
    watch.mark()

    assert not any(look(watch))
    write(path, "two")
    assert look(watch).count(True) == 1


def test_any_of_several_files_is_reported(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a", "b", "c")]
    watch = FileWatch(*paths)
    watch.mark()
    for path in paths:
        write(path, "one")
        assert changed(watch) == [True, False, False]


@pytest.mark.parametrize(
    ("name", "reported"), [("b.json", True), ("a.json", True), ("c.log", False), ("sub/d.json", False)]
)
def test_folder_stands_for_its_files_with_the_suffixes(tmp_path: Path, name: str, reported: bool) -> None:
    (tmp_path / "sub").mkdir()
    write(tmp_path / "a.json", "one")
    watch = FileWatch(tmp_path, suffixes={".json"})
    watch.mark()
    write(tmp_path / name, "two")

    assert watch.changed() == reported


def test_folder_has_changed_when_a_file_in_it_vanishes(tmp_path: Path) -> None:
    write(tmp_path / "a.json", "one")
    (tmp_path / "broken.json").symlink_to(tmp_path / "nowhere")
    watch = FileWatch(tmp_path, suffixes={".json"})
    watch.mark()
    (tmp_path / "a.json").unlink()

    assert (watch.changed(), watch.reported) == (True, ())
