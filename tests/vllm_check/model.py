"""Models with random weights: the demo's tokenizer, and as many layers as a part of the check needs.

Which blocks a prompt has and where they are does not depend on the reply, so the weights may be random. The model always
says whole words and never ends by itself: other tokens have a zero row in the output matrix, and of hundreds of random
scores the highest is above zero.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from kvatlas.sim.demo_model import VOCABULARY_SIZE, write_demo_model

from .number_format import NUMBER_FORMAT

MODEL_NAME = "kvatlas-check"
BLOCK_TOKENS = 32
"""Attention on CPU takes block sizes that are multiples of 32."""

_SCALE = 0.05
_WORD_START = "Ġ"
"""The blank before a word, as the vocabulary writes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Sizes of a model of the Llama architecture.

    Attributes:
        name: of its folder.
        n_layers: decoder layers.
        n_heads: attention heads.
        n_kv_heads: heads of keys and values.
        head_size: numbers per head.
        mlp_size: width of the feed-forward part.
        max_tokens: longest request, with its reply.
    """

    name: str
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_size: int
    mlp_size: int
    max_tokens: int

    @property
    def hidden_size(self) -> int:
        """Return the width of the model."""
        return self.n_heads * self.head_size

    @property
    def block_bytes(self) -> int:
        """Return the bytes of the keys and values of one block."""
        return self.n_layers * 2 * self.n_kv_heads * self.head_size * NUMBER_FORMAT.n_bytes * BLOCK_TOKENS

    @property
    def n_weights(self) -> int:
        """Return the number of weights."""
        return sum(int(np.prod(shape)) for _, shape in _tensors(self))


TINY = ModelShape(
    name="tiny", n_layers=2, n_heads=4, n_kv_heads=2, head_size=32, mlp_size=256, max_tokens=2048
)
"""Small enough for any machine: where its blocks are costs next to nothing to find out."""

COSTLY = ModelShape(
    name="costly", n_layers=10, n_heads=12, n_kv_heads=4, head_size=64, mlp_size=2048, max_tokens=4096
)
"""Large enough that its prefill decides on the time to first token."""


def write_model(folder: Path, shape: ModelShape) -> None:
    """Write a model folder that vLLM and kvatlas can load; the same bytes every time. Takes some seconds."""
    write_demo_model(folder)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": shape.hidden_size,
        "num_hidden_layers": shape.n_layers,
        "num_attention_heads": shape.n_heads,
        "num_key_value_heads": shape.n_kv_heads,
        "head_dim": shape.head_size,
        "intermediate_size": shape.mlp_size,
        "vocab_size": VOCABULARY_SIZE,
        "max_position_embeddings": shape.max_tokens,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    end = tokenizer.token_to_id("<|im_end|>")
    (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": end}, indent=1) + "\n")
    greedy = {"eos_token_id": end, "temperature": 0.0}
    (folder / "generation_config.json").write_text(json.dumps(greedy, indent=1) + "\n")
    words = [number for token, number in tokenizer.get_vocab().items() if _is_word(token)]
    _write_weights(folder / "model.safetensors", shape, words)


def _is_word(token: str) -> bool:
    return token.startswith(_WORD_START) and len(token) > 2 and token[1:].isalpha()


def _write_weights(file: Path, shape: ModelShape, words: list[int]) -> None:
    """Write all tensors as bfloat16 in the safetensors format: header length (u64 LE), JSON header, data."""
    header: dict[str, object] = {}
    end = 0
    tensors = _tensors(shape)
    for name, sizes in tensors:
        start, end = end, end + 2 * int(np.prod(sizes))
        header[name] = {"dtype": "BF16", "shape": sizes, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    rng = np.random.default_rng(0)
    with file.open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for name, sizes in tensors:
            values = np.ones(sizes, np.float32)
            if len(sizes) > 1:
                values = rng.standard_normal(sizes, np.float32) * np.float32(_SCALE)
            if name == "lm_head.weight":
                others = np.ones(len(values), np.bool_)
                others[words] = False
                values[others] = 0.0
            out.write(_bfloat16(values))


def _tensors(shape: ModelShape) -> list[tuple[str, tuple[int, ...]]]:
    hidden, kv_size, mlp = shape.hidden_size, shape.n_kv_heads * shape.head_size, shape.mlp_size
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm": (hidden,),
        "self_attn.q_proj": (hidden, hidden),
        "self_attn.k_proj": (kv_size, hidden),
        "self_attn.v_proj": (kv_size, hidden),
        "self_attn.o_proj": (hidden, hidden),
        "post_attention_layernorm": (hidden,),
        "mlp.gate_proj": (mlp, hidden),
        "mlp.up_proj": (mlp, hidden),
        "mlp.down_proj": (hidden, mlp),
    }
    return [
        ("model.embed_tokens.weight", (VOCABULARY_SIZE, hidden)),
        *(
            (f"model.layers.{n}.{name}.weight", sizes)
            for n in range(shape.n_layers)
            for name, sizes in layer.items()
        ),
        ("model.norm.weight", (hidden,)),
        ("lm_head.weight", (VOCABULARY_SIZE, hidden)),
    ]


def _bfloat16(values: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> bytes:
    """Return the upper halves of little-endian 32-bit floats."""
    return (values.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()
