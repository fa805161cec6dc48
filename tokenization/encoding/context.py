"""Length of a model's context, from the files beside its tokenizer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import msgspec

LENGTHS = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length",
    "max_target_positions", "max_sequence_length",
)  # fmt: skip
"""Fields of `config.json` from which vLLM derives the length. Source: vLLM 0.32 config/model.py."""

MAX_TOKENS = 2**31
"""Larger lengths mean that there is no limit; transformers writes 10**30."""


def context_tokens(folder: Path) -> int | None:
    """Return the longest context that the model's files allow, in tokens; None if they say nothing.

    Scaling of rotary embeddings counts, since it makes the context longer than the length in the file.
    """
    found = [
        tokens for name in ("config.json", "tokenizer_config.json") for tokens in _lengths(folder / name)
    ]
    return max(found, default=None)


def _lengths(file: Path) -> Iterator[int]:
    try:
        config = _fields(msgspec.json.decode(file.read_bytes()))
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return
    for part in (config, _fields(config.get("text_config"))):
        scaling = _fields(part.get("rope_scaling") or part.get("rope_parameters")).get("factor")
        factor = max(1.0, scaling) if isinstance(scaling, int | float) else 1.0
        for name in LENGTHS:
            tokens = part.get(name)
            if isinstance(tokens, int) and 0 < tokens < MAX_TOKENS:
                yield int(tokens * factor)


def _fields(value: object) -> dict[str, Any]:
    """Return `value` if it is an object, otherwise an empty one."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
