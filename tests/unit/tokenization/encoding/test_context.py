from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvatlas.tokenization.encoding.context import context_tokens


@pytest.mark.parametrize(
    ("config", "tokenizer_config", "tokens"),
    [
        pytest.param({"max_position_embeddings": 2048}, {}, 2048, id="length"),
        pytest.param({"n_positions": 1024}, {"model_max_length": 2048}, 2048, id="longest"),
        pytest.param({"max_position_embeddings": 2048}, {"model_max_length": 10**30}, 2048, id="no_limit"),
        pytest.param({"text_config": {"max_position_embeddings": 4096}}, {}, 4096, id="text_of_many_media"),
        pytest.param(
            {"max_position_embeddings": 32768, "rope_scaling": {"type": "yarn", "factor": 4.0}},
            {},
            131072,
            id="scaled",
        ),
        pytest.param(
            {"max_position_embeddings": 8, "rope_scaling": {"factor": 0.5}}, {}, 8, id="not_made_shorter"
        ),
        pytest.param({"max_position_embeddings": 8, "rope_scaling": None}, {}, 8, id="not_scaled"),
        pytest.param({"max_position_embeddings": "8", "text_config": []}, {}, None, id="other_types"),
        pytest.param([], {}, None, id="no_object"),
    ],
)
def test_context_is_the_longest_that_the_files_allow(
    tmp_path: Path, config: Any, tokenizer_config: Any, tokens: int | None
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    assert context_tokens(tmp_path) == tokens


@pytest.mark.parametrize("data", [None, b"{", b"\xff", b"[" * 100_000])
def test_context_is_unknown_when_files_cannot_be_read(tmp_path: Path, data: bytes | None) -> None:
    if data is not None:
        (tmp_path / "config.json").write_bytes(data)
    assert context_tokens(tmp_path) is None
