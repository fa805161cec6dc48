from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvatlas.tokenization.chats.own_renderer import HARMONY_TOKENS, find_own_renderer
from kvatlas.tokenization.errors import TokenizerLoadError

TOKENS = {"added_tokens": [{"id": n, "content": token} for n, token in enumerate(sorted(HARMONY_TOKENS))]}


def write(folder: Path, **files: Any) -> Path:
    """Create a folder with these files; `__` in a name stands for a dot, values other than bytes become JSON."""
    for name, content in files.items():
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        (folder / name.replace("__", ".")).write_bytes(data)
    return folder


@pytest.mark.parametrize(
    ("files", "family", "texts", "needs_render"),
    [
        pytest.param({"config__json": {"model_type": "gpt_oss"}}, "Harmony", False, True, id="gpt_oss"),
        pytest.param(
            {"config__json": {"architectures": ["DeepseekV32ForCausalLM"]}},
            "DeepSeek V3.2",
            False,
            False,
            id="v32",
        ),
        pytest.param(
            {"config__json": {"architectures": ["Other", "KimiK3ForConditionalGeneration"]}},
            "Kimi K3",
            False,
            False,
            id="one_of_several",
        ),
        pytest.param(
            {"config__json": {"architectures": ["MoonshotKimiaForCausalLM"]}},
            "Kimi-Audio",
            True,
            False,
            id="audio",
        ),
        pytest.param({"tekken__json": {}}, "Mistral's tokenizer", True, False, id="mistral_without_weights"),
        pytest.param(
            {"tokenizer__model__v3": b"", "consolidated-1__safetensors": b"", "model__safetensors": b""},
            "Mistral's tokenizer",
            True,
            False,
            id="mistral_with_its_weights",
        ),
        pytest.param({"tokenizer__json": TOKENS}, "Harmony", False, True, id="harmony_without_config"),
    ],
)
def test_own_renderer_is_found_by_what_the_folder_has(
    files: dict[str, Any], family: str, texts: bool, needs_render: bool, tmp_path: Path
) -> None:
    found = find_own_renderer(write(tmp_path, **files))
    assert found is not None
    assert (found.family, found.texts, found.needs_render) == (family, texts, needs_render)
    assert ("prompts" if texts else "chats") in str(found)


@pytest.mark.parametrize(
    "files",
    [
        pytest.param({}, id="nothing"),
        pytest.param(
            {"config__json": {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}}, id="llama"
        ),
        pytest.param({"config__json": {"architectures": None}}, id="no_architectures"),
        pytest.param({"tekken__json": {}, "model__safetensors": b""}, id="mistral_with_other_weights"),
        pytest.param(
            {"config__json": {"model_type": "qwen3"}, "tokenizer__json": TOKENS}, id="tokens_and_config"
        ),
        pytest.param(
            {"tokenizer__json": {"added_tokens": [{"id": 1, "content": "<|start|>"}]}}, id="one_token"
        ),
    ],
)
def test_no_own_renderer_is_found_when_nothing_says_so(files: dict[str, Any], tmp_path: Path) -> None:
    assert find_own_renderer(write(tmp_path, **files)) is None


@pytest.mark.parametrize(
    "files",
    [
        pytest.param({"config__json": b"no json"}, id="no_json"),
        pytest.param({"config__json": {"architectures": "one"}}, id="odd_architectures"),
        pytest.param({"tokenizer__json": {"added_tokens": [3]}}, id="odd_tokens"),
    ],
)
def test_load_error_names_the_file_when_it_is_broken(files: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(TokenizerLoadError, match=r"json is broken .*copy it again"):
        find_own_renderer(write(tmp_path, **files))
