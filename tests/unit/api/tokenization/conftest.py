"""Model folders for the tokenization tests, made from the recorded tiny model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

GOLDEN = Path(__file__).parents[3] / "golden" / "vllm-0.32.0"
TINY = GOLDEN / "tiny-model"

BOS = "<|endoftext|>"
ADDS_BOS = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": BOS, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {BOS: {"id": BOS, "ids": [0], "tokens": [BOS]}},
}


def read_json(file: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(file.read_text())
    return data


def write_model(folder: Path, *, tokenizer: Mapping[str, Any], config: Mapping[str, Any]) -> Path:
    """A model folder without template file, with these changes to the tiny model's JSON files."""
    folder.mkdir()
    shutil.copy(TINY / "config.json", folder)
    for name, changes in (("tokenizer.json", tokenizer), ("tokenizer_config.json", config)):
        (folder / name).write_text(json.dumps({**read_json(TINY / name), **changes}))
    return folder


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of three models.

    tiny: as recorded. bos: tokenizer and template both put a BOS token in front, `bos_token` is written as an object.
    named: two templates in `tokenizer_config.json`, one of them for requests with tools.
    """
    folder = tmp_path_factory.mktemp("models")
    template = read_json(TINY / "tokenizer_config.json")["chat_template"]
    bos_token = {"__type": "AddedToken", "content": BOS, "special": True, "normalized": False}
    bos_token |= {"lstrip": False, "rstrip": False, "single_word": False}
    named = [
        {"name": "default", "template": template},
        {"name": "tool_use", "template": "{% if tools %}tools: {{ tools | tojson }}{% endif %}\n" + template},
    ]
    return {
        "tiny": TINY,
        "bos": write_model(
            folder / "bos",
            tokenizer={"post_processor": ADDS_BOS},
            config={
                "bos_token": bos_token,
                "add_bos_token": False,
                "chat_template": "{{ bos_token }}" + template,
            },
        ),
        "named": write_model(folder / "named", tokenizer={}, config={"chat_template": named}),
    }
