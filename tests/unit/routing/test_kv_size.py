from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvatlas.configs.schema import ModelConfig
from kvatlas.routing.kv_size import KvSize, kv_size

QWEN3_32B = {
    "num_hidden_layers": 64,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "hidden_size": 5120,
    "head_dim": 128,
    "sliding_window": None,
    "use_sliding_window": False,
    "torch_dtype": "bfloat16",
}
FP8 = {"quantization_config": {"kv_cache_scheme": {"num_bits": 8, "type": "float"}}}


def size_of(folder: Path, shape: dict[str, Any]) -> float | None:
    (folder / "config.json").write_text(json.dumps(shape))
    found = kv_size(ModelConfig(tokenizer=str(folder)))
    assert found is None or found.source == str(folder / "config.json")
    return found.n_bytes if found is not None else None


@pytest.mark.parametrize(
    ("shape", "n_bytes"),
    [
        pytest.param(QWEN3_32B, 2 * 2 * 64 * 8 * 128, id="grouped_heads"),
        pytest.param(QWEN3_32B | FP8, 2 * 64 * 8 * 128, id="eight_bits_by_the_checkpoint"),
        pytest.param(
            QWEN3_32B | {"quantization_config": {"quant_method": "fp8"}},
            2 * 2 * 64 * 8 * 128,
            id="weights_alone_in_8_bits",
        ),
        pytest.param({"text_config": QWEN3_32B, "vision_config": {}}, 262_144, id="part_of_a_larger_model"),
        pytest.param(
            {"num_hidden_layers": 32, "num_attention_heads": 32, "hidden_size": 4096},
            2 * 2 * 32 * 4096,
            id="a_head_of_its_own_for_each",
        ),
        pytest.param(
            {"num_hidden_layers": 61, "kv_lora_rank": 512, "qk_rope_head_dim": 64},
            2 * 61 * 576,
            id="latent",
        ),
        pytest.param(QWEN3_32B | {"layer_types": ["full_attention"] * 64}, 262_144, id="all_layers_full"),
        pytest.param(
            QWEN3_32B | {"layer_types": ["full_attention", "sliding_attention"]}, None, id="some_slide"
        ),
        pytest.param(
            QWEN3_32B | {"sliding_window": 4096, "use_sliding_window": True}, None, id="window_everywhere"
        ),
        pytest.param(QWEN3_32B | {"attn_layer_period": 8}, None, id="mamba_between"),
        pytest.param({"num_hidden_layers": 4}, None, id="no_heads"),
        pytest.param({"num_hidden_layers": 4, "num_attention_heads": 4}, None, id="no_size"),
        pytest.param({"num_hidden_layers": 61, "kv_lora_rank": 0}, None, id="latent_of_nothing"),
        pytest.param({"num_hidden_layers": "many"}, None, id="nonsense"),
    ],
)
def test_memory_of_a_token_is_computed_where_every_layer_keeps_it(
    shape: dict[str, Any], n_bytes: float | None, tmp_path: Path
) -> None:
    assert size_of(tmp_path, shape) == n_bytes


def test_configured_size_counts_before_the_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_32B))

    found = kv_size(ModelConfig(tokenizer=str(tmp_path), kv_bytes_per_token=1000))
    assert found == KvSize(1000, "model.kvBytesPerToken")


def test_file_beside_a_tokenizer_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_32B))
    (tmp_path / "tokenizer.json").touch()

    found = kv_size(ModelConfig(tokenizer=str(tmp_path / "tokenizer.json")))
    assert found is not None
    assert found.n_bytes == 262_144


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b'{"layer_types": ["\xff"]}', id="not_utf8"),
        pytest.param(b'{"x": ' * 100_000, id="endless_nesting"),
    ],
)
def test_size_is_unknown_when_the_description_is_unreadable(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(content)

    assert kv_size(ModelConfig(tokenizer=str(tmp_path))) is None


@pytest.mark.parametrize("tokenizer", ["", "/nowhere/tokenizer.json", "/" + 300 * "a"])
def test_size_is_unknown_without_description(tokenizer: str) -> None:
    assert kv_size(ModelConfig(tokenizer=tokenizer)) is None
