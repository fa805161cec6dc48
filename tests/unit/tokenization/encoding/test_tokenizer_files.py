from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kvatlas.tokenization.encoding.tokenizer import ModelTokenizer
from kvatlas.tokenization.encoding.tokenizer_files import TokenizerFiles
from kvatlas.tokenization.errors import TokenizerLoadError


def copy_of(folder: Path, to: Path) -> Path:
    to.mkdir()
    for file in folder.iterdir():
        shutil.copyfile(file, to / file.name)
    return to


@pytest.fixture
def folder(models: dict[str, Path], tmp_path: Path) -> Path:
    return copy_of(models["tiny"], tmp_path / "model")


def ids(tokenizer: ModelTokenizer | None) -> list[int] | None:
    return tokenizer.segments.tokens("hello", add_special_tokens=True).tolist() if tokenizer else None


def test_nothing_is_loaded_when_no_file_changes(folder: Path) -> None:
    files = TokenizerFiles(folder)
    assert [files.reload() for _ in range(3)] == [None, None, None]
    assert ids(files.tokenizer) == [418]


def test_changed_tokenizer_is_loaded_once_when_it_has_stayed_the_same_once(
    folder: Path, models: dict[str, Path]
) -> None:
    files = TokenizerFiles(folder)
    shutil.copyfile(models["bos"] / "tokenizer.json", folder / "tokenizer.json")
    assert [ids(files.reload()) for _ in range(4)] == [None, [0, 418], None, None]
    assert (files.n_reloads, files.n_failures) == (1, 0)


def test_file_is_not_loaded_while_it_grows(folder: Path, models: dict[str, Path]) -> None:
    files = TokenizerFiles(folder)
    whole = (models["bos"] / "tokenizer.json").read_bytes()
    for part in range(1, 5):
        (folder / "tokenizer.json").write_bytes(whole[: len(whole) * part // 4])
        assert files.reload() is None
    assert ids(files.reload()) == [0, 418]
    assert files.n_failures == 0


def replace_template(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}!")


def add_template(folder: Path) -> None:
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("tools")


def swap_link(folder: Path) -> None:
    """Replace a link in the way of a mounted ConfigMap."""
    other = copy_of(folder, folder.parent / "other")
    (other / "chat_template.jinja").write_text("{{ messages[0].content }}!")
    for name in ("tokenizer.json", "chat_template.jinja"):
        (folder / name).unlink()
        (folder / name).symlink_to(other / name)


@pytest.mark.parametrize("change", [replace_template, add_template, swap_link])
def test_templates_count_as_files_of_the_tokenizer(folder: Path, change: Callable[[Path], None]) -> None:
    files = TokenizerFiles(folder)
    change(folder)
    assert files.reload() is None
    assert files.reload() is not None


@pytest.mark.parametrize("name", ["model.safetensors", "README.md", "log"])
def test_other_files_do_not_count(folder: Path, name: str) -> None:
    files = TokenizerFiles(folder)
    (folder / name).write_text("new")
    (folder / "gone.json").symlink_to(folder / "nowhere")
    assert [files.reload() for _ in range(3)] == [None, None, None]
    assert (files.n_reloads, files.n_failures) == (0, 0)


def break_json(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{")


def break_template(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{% if %}")


def remove_folder(folder: Path) -> None:
    shutil.rmtree(folder)


@pytest.mark.parametrize("damage", [break_json, break_template, remove_folder])
def test_old_tokenizer_is_kept_with_one_warning_when_the_new_files_are_broken(
    folder: Path, models: dict[str, Path], caplog: pytest.LogCaptureFixture, damage: Callable[[Path], None]
) -> None:
    files = TokenizerFiles(folder)
    damage(folder)
    with caplog.at_level(logging.WARNING):
        assert [files.reload() for _ in range(4)] == [None] * 4
    (record,) = caplog.records
    assert record.message.startswith("keeping the loaded tokenizer, its changed files cannot be used: ")
    assert str(folder) in record.message
    assert (files.n_reloads, files.n_failures) == (0, 1)
    shutil.rmtree(folder, ignore_errors=True)
    copy_of(models["bos"], folder)
    assert [ids(files.reload()) for _ in range(2)] == [None, [0, 418]]


def test_single_file_is_followed_too(folder: Path, models: dict[str, Path]) -> None:
    files = TokenizerFiles(folder / "tokenizer.json")
    shutil.copyfile(models["bos"] / "tokenizer.json", folder / "tokenizer.json")
    assert [ids(files.reload()) for _ in range(2)] == [None, [0, 418]]


def test_tokenizer_load_error_is_raised_when_the_first_files_are_broken(folder: Path) -> None:
    break_json(folder)
    with pytest.raises(TokenizerLoadError, match="not a readable tokenizer"):
        TokenizerFiles(folder)
