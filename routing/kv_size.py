"""Memory of a token's KV state, from the model's own description."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ..configs.schema import ModelConfig

CONFIGURED = "model.kvBytesPerToken"
_DESCRIPTION = "config.json"
_BYTES_PER_NUMBER = 2.0
"""Engines keep keys and values in 16 bits, unless the checkpoint or a flag changes that."""


@dataclass(frozen=True, slots=True)
class KvSize:
    """Bytes per token, on all GPUs of a server together, and the source of that figure."""

    n_bytes: float
    source: str


class _CacheScheme(msgspec.Struct, frozen=True):
    num_bits: int = 16


class _Quantization(msgspec.Struct, frozen=True):
    kv_cache_scheme: _CacheScheme | None = None


class _Shape(msgspec.Struct, frozen=True):
    """Attention fields of a checkpoint's config.json; the last ones belong to models that keep less for some layers."""

    num_hidden_layers: int | None = None
    num_attention_heads: int | None = None
    num_key_value_heads: int | None = None
    hidden_size: int | None = None
    head_dim: int | None = None
    kv_lora_rank: int | None = None
    qk_rope_head_dim: int | None = None
    quantization_config: _Quantization | None = None
    text_config: _Shape | None = None
    layer_types: tuple[str, ...] = ()
    sliding_window: int | None = None
    use_sliding_window: bool = True
    full_attention_interval: Any = None
    attn_layer_period: Any = None
    attn_layer_indices: Any = None
    layers_block_type: Any = None
    hybrid_override_pattern: Any = None

    @property
    def is_uniform(self) -> bool:
        """Whether every layer keeps keys and values of every token."""
        if self.layer_types:
            return set(self.layer_types) == {"full_attention"}
        slides = self.sliding_window is not None and self.use_sliding_window
        others = (
            self.full_attention_interval,
            self.attn_layer_period,
            self.attn_layer_indices,
            self.layers_block_type,
            self.hybrid_override_pattern,
        )
        return not slides and all(each is None for each in others)


def kv_size(model: ModelConfig) -> KvSize | None:
    """Return the configured size, else one from `config.json` beside the tokenizer; None without both.

    Hybrid models, whose layers do not all keep every token, are not computed.
    """
    if isinstance(model.kv_bytes_per_token, int):
        return KvSize(model.kv_bytes_per_token, CONFIGURED)
    if not model.tokenizer:
        return None
    folder = Path(model.tokenizer)
    try:
        file = (folder if folder.is_dir() else folder.parent) / _DESCRIPTION
        shape = msgspec.json.decode(file.read_bytes(), type=_Shape)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    n_bytes = _bytes_per_token(shape.text_config or shape, shape.quantization_config)
    return KvSize(n_bytes, str(file)) if n_bytes is not None and n_bytes > 0 else None


def largest_kv_bytes(models: Iterable[ModelConfig]) -> float | None:
    """Return the largest size of some models, None if that of none is known."""
    return max((found.n_bytes for each in models if (found := kv_size(each)) is not None), default=None)


def _bytes_per_token(shape: _Shape, quantization: _Quantization | None) -> float | None:
    if not shape.num_hidden_layers or not shape.is_uniform:
        return None
    scheme = quantization.kv_cache_scheme if quantization is not None else None
    number = scheme.num_bits / 8 if scheme is not None else _BYTES_PER_NUMBER
    if shape.kv_lora_rank is not None:  # latent attention: one vector per token in place of keys and values
        return number * shape.num_hidden_layers * (shape.kv_lora_rank + (shape.qk_rope_head_dim or 0))
    if not shape.num_attention_heads:
        return None
    head_dim = shape.head_dim or (shape.hidden_size or 0) // shape.num_attention_heads
    heads = shape.num_key_value_heads or shape.num_attention_heads
    return 2 * number * shape.num_hidden_layers * heads * head_dim or None
