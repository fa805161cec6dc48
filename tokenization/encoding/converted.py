"""Tokenizers of models that come without `tokenizer.json`: made by `transformers` from the files they have.

The engine does the same with these models, so it is the conversion that gives the engine's ids.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from ..errors import TokenizerLoadError

SOURCES = (
    "tokenizer.model",
    "tiktoken.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "vocab.json",
    "vocab.txt",
)
"""Files that tokenizers are made from: SentencePiece, tiktoken, and older forms of BPE and WordPiece."""

EXTRA = ("transformers", "sentencepiece", "tiktoken")
"""What `kvatlas[transformers]` installs. All are needed: without sentencepiece, its files are read as something else."""


def convert(folder: Path) -> tuple[Tokenizer, Mapping[str, str]]:
    """The tokenizer in `folder`, and its special tokens by names such as `bos_token`.

    Code that a model brings along is not run, and nothing is downloaded.

    Raises:
        TokenizerLoadError: the extra is not installed, or the files make no tokenizer.
    """
    absent = [name for name in EXTRA if find_spec(name) is None]
    if absent:
        raise TokenizerLoadError(
            f"tokenizer folder {folder} has no tokenizer.json, and making one of what it has needs {', '.join(absent)}: "
            f"pip install 'kvatlas[transformers]'"
        )
    transformers: Any = importlib.import_module("transformers")
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
    except Exception as error:
        # The library lets through whatever goes wrong inside.
        raise TokenizerLoadError(f"transformers makes no tokenizer of {folder}: {error}") from error
    backend: object = getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        raise TokenizerLoadError(
            f"the tokenizer in {folder} runs in Python ({type(tokenizer).__name__}); not supported"
        )
    return backend, {
        name: str(token) for name, token in tokenizer.special_tokens_map.items() if isinstance(token, str)
    }
