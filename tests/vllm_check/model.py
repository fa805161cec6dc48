"""A model small enough for any machine: the demo's tokenizer, and two layers of random weights.

What a prompt's blocks are and where they lie does not depend on what the model says, so it may say anything. It always
says whole words and never ends by itself: other tokens have a zero row in the output matrix, and of hundreds of random
scores the highest is above zero.
"""

from __future__ import annotations

import json
from array import array
from pathlib import Path
from random import Random

from tokenizers import Tokenizer

from kvatlas.sim.demo_model import VOCABULARY_SIZE, write_demo_model

MODEL_NAME = "kvatlas-check"
BLOCK_TOKENS = 32
"""Attention on CPU takes block sizes that are multiples of 32."""
MAX_TOKENS = 2048
N_LAYERS, N_HEADS, N_KV_HEADS, HEAD_SIZE, MLP_SIZE = 2, 4, 2, 32, 256
HIDDEN_SIZE = N_HEADS * HEAD_SIZE
BLOCK_BYTES = N_LAYERS * 2 * N_KV_HEADS * HEAD_SIZE * 2 * BLOCK_TOKENS
"""Keys and values of one block, two bytes per number."""

_SCALE = 0.05
_WORD_START = "Ġ"
"""The blank before a word, as the vocabulary writes it."""


def write_model(folder: Path) -> None:
    """Write a model folder that vLLM and kvatlas can load; the same bytes every time. Takes some seconds."""
    write_demo_model(folder)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN_SIZE,
        "num_hidden_layers": N_LAYERS,
        "num_attention_heads": N_HEADS,
        "num_key_value_heads": N_KV_HEADS,
        "head_dim": HEAD_SIZE,
        "intermediate_size": MLP_SIZE,
        "vocab_size": VOCABULARY_SIZE,
        "max_position_embeddings": MAX_TOKENS,
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
    words = {number for token, number in tokenizer.get_vocab().items() if _is_word(token)}
    _write_weights(folder / "model.safetensors", words)


def _is_word(token: str) -> bool:
    return token.startswith(_WORD_START) and len(token) > 2 and token[1:].isalpha()


def _write_weights(file: Path, words: set[int]) -> None:
    """Write all tensors as bfloat16 in the safetensors format: header length (u64 LE), JSON header, data."""
    header: dict[str, object] = {}
    data = bytearray()
    rng = Random(0)
    for name, shape in _tensors():
        start = len(data)
        match name:
            case "lm_head.weight":
                for token in range(shape[0]):
                    data += _random(rng, shape[1]) if token in words else bytes(2 * shape[1])
            case _ if len(shape) == 1:
                data += _bfloat16([1.0] * shape[0])
            case _:
                data += _random(rng, shape[0] * shape[1])
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, len(data)]}
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + data)


def _tensors() -> list[tuple[str, tuple[int, ...]]]:
    kv_size = N_KV_HEADS * HEAD_SIZE
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm": (HIDDEN_SIZE,),
        "self_attn.q_proj": (HIDDEN_SIZE, HIDDEN_SIZE),
        "self_attn.k_proj": (kv_size, HIDDEN_SIZE),
        "self_attn.v_proj": (kv_size, HIDDEN_SIZE),
        "self_attn.o_proj": (HIDDEN_SIZE, HIDDEN_SIZE),
        "post_attention_layernorm": (HIDDEN_SIZE,),
        "mlp.gate_proj": (MLP_SIZE, HIDDEN_SIZE),
        "mlp.up_proj": (MLP_SIZE, HIDDEN_SIZE),
        "mlp.down_proj": (HIDDEN_SIZE, MLP_SIZE),
    }
    return [
        ("model.embed_tokens.weight", (VOCABULARY_SIZE, HIDDEN_SIZE)),
        *(
            (f"model.layers.{n}.{name}.weight", shape)
            for n in range(N_LAYERS)
            for name, shape in layer.items()
        ),
        ("model.norm.weight", (HIDDEN_SIZE,)),
        ("lm_head.weight", (VOCABULARY_SIZE, HIDDEN_SIZE)),
    ]


def _random(rng: Random, n_values: int) -> bytes:
    return _bfloat16([rng.gauss(0, _SCALE) for _ in range(n_values)])


def _bfloat16(values: list[float]) -> bytes:
    """Return the upper halves of little-endian 32-bit floats."""
    singles = array("f", values).tobytes()
    halves = bytearray(len(values) * 2)
    halves[0::2], halves[1::2] = singles[2::4], singles[3::4]
    return bytes(halves)
