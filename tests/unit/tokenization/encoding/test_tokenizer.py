from __future__ import annotations

import json
import shutil
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvatlas.tokenization.chats.conversation import Message
from kvatlas.tokenization.encoding.tokenizer import load_tokenizer
from kvatlas.tokenization.errors import EncodeError, TokenizerLoadError
from kvatlas.tokenization.model import ChatPrompt

HELLO = ChatPrompt(messages=(Message(role="user", content="hi"),))


@pytest.fixture
def folder(models: dict[str, Path], tmp_path: Path) -> Path:
    """Copy the tiny model without any template."""
    copy = tmp_path / "model"
    shutil.copytree(models["tiny"], copy)
    copy.chmod(0o755)
    for file in copy.iterdir():
        file.chmod(0o644)
    (copy / "chat_template.jinja").unlink()
    edit(copy / "tokenizer_config.json", lambda config: config.pop("chat_template"))
    return copy


def edit(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    data = json.loads(file.read_text())
    change(data)
    file.write_text(json.dumps(data))


def rendered(folder: Path) -> str | None:
    chat = load_tokenizer(folder).chat
    return None if chat is None else chat.render(HELLO).text


def test_ids_are_whole_when_the_file_asks_for_truncation_and_padding(folder: Path) -> None:
    def shorten(tokenizer: dict[str, Any]) -> None:
        tokenizer["truncation"] = {
            "direction": "Right",
            "max_length": 1,
            "strategy": "LongestFirst",
            "stride": 0,
        }
        tokenizer["padding"] = {"strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": None}
        tokenizer["padding"] |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "<|endoftext|>"}

    edit(folder / "tokenizer.json", shorten)
    assert load_tokenizer(folder).encode("hello world", add_special_tokens=True) == array("I", [418, 390])


def test_encode_error_is_raised_when_the_text_is_not_unicode(models: dict[str, Path]) -> None:
    with pytest.raises(EncodeError, match="TypeError"):
        load_tokenizer(models["tiny"]).encode("a\ud800", add_special_tokens=True)


def test_templates_are_left_out_when_one_file_is_given(models: dict[str, Path]) -> None:
    tokenizer = load_tokenizer(str(models["tiny"] / "tokenizer.json"))
    assert tokenizer.chat is None
    assert tokenizer.encode("hello world", add_special_tokens=True) == array("I", [418, 390])


def test_template_comes_from_nowhere_when_the_model_has_none(folder: Path) -> None:
    assert rendered(folder) is None
    (folder / "tokenizer_config.json").unlink()
    assert rendered(folder) is None


def test_template_file_wins_over_the_configuration(folder: Path) -> None:
    edit(folder / "tokenizer_config.json", lambda config: config.update(chat_template="from config"))
    assert rendered(folder) == "from config"
    (folder / "chat_template.jinja").write_text("from file")
    assert rendered(folder) == "from file"


def test_further_template_files_are_found_by_their_names(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("default")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    chat = load_tokenizer(folder).chat
    assert chat is not None
    assert sorted(chat.templates) == ["default", "tool_use"]
    assert chat.render(ChatPrompt(messages=HELLO.messages, tools=[])).text == "tools"


def test_special_tokens_are_known_to_templates_in_either_form(folder: Path) -> None:
    tokens = {"bos_token": {"content": "<b>"}, "eos_token": "<e>", "pad_token": None, "add_bos_token": True}
    edit(folder / "tokenizer_config.json", lambda config: config.update(tokens))
    (folder / "chat_template.jinja").write_text(
        "{{ bos_token }}{{ eos_token }}{{ pad_token is defined }}{{ add_bos_token is defined }}"
    )
    assert rendered(folder) == "<b><e>FalseFalse"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        pytest.param({}, "<img>", id="in_tokenizer_config"),
        pytest.param({"added_tokens_decoder": None}, "<b><img>", id="in_special_tokens_map_too"),
    ],
)
def test_special_tokens_are_found_in_every_file_that_may_have_them(
    folder: Path, changes: dict[str, None], text: str
) -> None:
    def change(config: dict[str, Any]) -> None:
        config["extra_special_tokens"] = {"image_token": "<img>"}
        for name in changes:
            del config[name]

    edit(folder / "tokenizer_config.json", change)
    (folder / "special_tokens_map.json").write_text('{"bos_token": {"content": "<b>"}, "other": 1}')
    (folder / "chat_template.jinja").write_text("{{ bos_token }}{{ image_token }}")
    assert rendered(folder) == text


def test_processors_template_is_found_in_either_file(folder: Path) -> None:
    (folder / "chat_template.json").write_text('{"chat_template": "legacy"}')
    assert rendered(folder) == "legacy"
    (folder / "processor_config.json").write_text('{"chat_template": "processor"}')
    (folder / "chat_template.jinja").write_text("own")
    assert rendered(folder) == "processor"


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def write(name: str, data: bytes) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / name).write_bytes(data)

    return damage


def empty(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        pytest.param(
            remove("tokenizer.json"),
            r"model has no tokenizer.json \(it has config.json, tokenizer_config.json\); copy it there",
            id="no_tokenizer_file",
        ),
        pytest.param(empty, r"\(it has no files\)", id="empty_folder"),
        pytest.param(
            write("tokenizer.json", b"{"), r"tokenizer.json is not a readable tokenizer \(.+\)", id="cut"
        ),
        pytest.param(write("tokenizer.json", b"{}"), "Model missing", id="no_model"),
        pytest.param(
            write("tokenizer_config.json", b"{"),
            r"tokenizer_config.json is not a JSON object",
            id="config_cut",
        ),
        pytest.param(
            write("tokenizer_config.json", b"[]"),
            r"tokenizer_config.json is not a JSON object",
            id="config_is_a_list",
        ),
        pytest.param(
            write("tokenizer_config.json", b'{"chat_template": 3}'),
            "chat_template in .*tokenizer_config.json is neither",
            id="template_is_a_number",
        ),
        pytest.param(
            write("chat_template.jinja", b"ok\n{% if %}"),
            "chat template 'default' in .* cannot be used: chat template line 2",
            id="template_broken",
        ),
        pytest.param(
            write("chat_template.jinja", b"\xff"), "chat_template.jinja cannot be read", id="template_no_text"
        ),
    ],
)
def test_tokenizer_load_error_says_what_is_wrong_when_a_file_is(
    folder: Path, damage: Callable[[Path], None], message: str
) -> None:
    damage(folder)
    with pytest.raises(TokenizerLoadError, match=message):
        load_tokenizer(folder)


def test_tokenizer_load_error_is_raised_when_there_is_nothing_at_the_path(tmp_path: Path) -> None:
    with pytest.raises(
        TokenizerLoadError, match=r"absent does not exist; set model\.tokenizer to a local folder"
    ):
        load_tokenizer(tmp_path / "absent")


def test_some_files_are_named_when_a_folder_without_tokenizer_has_many(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"file{number:02}").touch()
    with pytest.raises(TokenizerLoadError, match=r"it has file00, .*, file09, \.\.\.\)"):
        load_tokenizer(tmp_path)
