"""Conversion of tokenizers without `tokenizer.json`, by the `transformers` library.

The engine uses the same conversion, so the ids are the engine's.
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
"""Files that can be converted: SentencePiece, tiktoken, and older forms of BPE and WordPiece."""

EXTRA = ("transformers", "sentencepiece", "tiktoken")
"""Packages of `kvatlas[transformers]`. All are needed: without sentencepiece, its files are read as another format."""


def convert(folder: Path) -> tuple[Tokenizer, Mapping[str, str]]:
    """Return the tokenizer in `folder`, and its special tokens by names such as `bos_token`.

    Code in the model folder is not run, and nothing is downloaded.

    Raises:
        TokenizerLoadError: the extra is not installed, or the files cannot be converted.
    """
    absent = [name for name in EXTRA if find_spec(name) is None]
    if absent:
        raise TokenizerLoadError(
            f"tokenizer folder {folder} has no tokenizer.json, and converting its other files needs {', '.join(absent)}: "
            f"pip install 'kvatlas[transformers]'"
        )
    transformers: Any = importlib.import_module("transformers")
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
    except Exception as error:
        # The library does not wrap its errors; any exception can be raised.
        raise TokenizerLoadError(f"transformers cannot convert the tokenizer in {folder}: {error}") from error
    backend: object = getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        raise TokenizerLoadError(
            f"the tokenizer in {folder} runs in Python ({type(tokenizer).__name__}); not supported"
        )
    return backend, {
        name: str(token) for name, token in tokenizer.special_tokens_map.items() if isinstance(token, str)
    }
