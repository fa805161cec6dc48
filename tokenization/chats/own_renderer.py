"""Detection of models whose prompts the engine renders with its own code.

For most models the engine uses the model's chat template and `tokenizer.json`. For a few it does not; their files would
silently give other ids.
Source: vLLM 0.32 config/model.py (tokenizer modes by architecture), tokenizers/registry.py (Mistral's formats) and
renderers/online_renderer.py (Harmony).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from ..errors import TokenizerLoadError
from .chat_files import read_text

T = TypeVar("T")

ARCHITECTURES = {
    "DeepseekV32ForCausalLM": "DeepSeek V3.2",
    "DeepseekV4ForCausalLM": "DeepSeek V4",
    "DeepseekV4ForConditionalGeneration": "DeepSeek V4",
    "DeepseekV41ForCausalLM": "DeepSeek V4.1",
    "InklingForCausalLM": "Inkling",
    "InklingForConditionalGeneration": "Inkling",
    "KimiK3ForConditionalGeneration": "Kimi K3",
    "MoonshotKimiaForCausalLM": "Kimi-Audio",
}
"""Architecture -> model family whose chats vLLM renders with its own code."""

OWN_TOKENIZERS = frozenset({"Kimi-Audio"})
"""Families whose plain texts vLLM encodes without `tokenizer.json`."""

HARMONY_TOKENS = frozenset(
    {"<|start|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|call|>", "<|return|>"}
)
"""Added tokens that only models with the Harmony chat format have."""

MISTRAL_TOKENIZERS = ("tekken.json", "tokenizer.model.v*")
MISTRAL_WEIGHTS = "consolidated*.safetensors"
"""vLLM uses Mistral's tokenizer for a model with one of the tokenizer files and weights in Mistral's format."""


@dataclass(frozen=True, slots=True)
class OwnRenderer:
    """The engine's own renderer for a model.

    Attributes:
        family: name of the prompt format, or of the models that use it.
        evidence: how it was detected.
        texts: whether the engine also encodes plain texts with its own code, not only chats.
        needs_render: whether the engine's `/tokenize` returns other ids than its model gets.
    """

    family: str
    evidence: str
    texts: bool = False
    needs_render: bool = False

    def __str__(self) -> str:
        """Return a sentence for people."""
        what = "prompts" if self.texts else "chats"
        return f"the engine writes {what} for {self.family} with its own code ({self.evidence})"


class _Config(msgspec.Struct):
    """The needed fields of `config.json`."""

    model_type: str | None = None
    architectures: tuple[str, ...] | None = None


class _AddedToken(msgspec.Struct):
    content: str


class _Tokenizer(msgspec.Struct):
    """The needed fields of `tokenizer.json`."""

    added_tokens: tuple[_AddedToken, ...] = ()


def find_own_renderer(folder: Path) -> OwnRenderer | None:
    """Return the engine's own renderer for the model in `folder`; None if there is no evidence of one.

    Raises:
        TokenizerLoadError: a file cannot be read or is broken.
    """
    config = _read(folder / "config.json", _Config)
    if config is not None and config.model_type == "gpt_oss":
        return OwnRenderer("Harmony", "model_type is gpt_oss in config.json", needs_render=True)
    for architecture in (config and config.architectures) or ():
        if (family := ARCHITECTURES.get(architecture)) is not None:
            return OwnRenderer(family, f"{architecture} in config.json", texts=family in OWN_TOKENIZERS)
    if (file := _mistral_tokenizer(folder)) is not None:
        return OwnRenderer("Mistral's tokenizer", f"the folder has {file}", texts=True)
    if config is None and _added_tokens(folder) >= HARMONY_TOKENS:
        return OwnRenderer("Harmony", "its tokens are in tokenizer.json", needs_render=True)
    return None


def _mistral_tokenizer(folder: Path) -> str | None:
    """Return the file of Mistral's tokenizer if vLLM uses it.

    A folder without any weights counts as a copy of a model with weights in Mistral's format.
    """
    found = next((file.name for name in MISTRAL_TOKENIZERS for file in sorted(folder.glob(name))), None)
    with_its_weights = any(folder.glob(MISTRAL_WEIGHTS)) or not any(folder.glob("*.safetensors"))
    return found if with_its_weights else None


def _added_tokens(folder: Path) -> frozenset[str]:
    tokenizer = _read(folder / "tokenizer.json", _Tokenizer)
    return frozenset(token.content for token in tokenizer.added_tokens) if tokenizer else frozenset()


def _read(file: Path, kind: type[T]) -> T | None:
    """Decode `file`; None if it does not exist."""
    if not file.is_file():
        return None
    try:
        return msgspec.json.decode(read_text(file), type=kind)
    except msgspec.DecodeError as error:
        raise TokenizerLoadError(
            f"{file} is broken ({error}); copy it again from the model's repository"
        ) from error
