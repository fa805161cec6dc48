"""Models whose prompts the engine writes with code of its own.

For most models the engine does what the model's files say: chat template and `tokenizer.json`. For a few it does not, and
what their files give would be other ids, without anyone noticing.
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
"""Architecture -> the family whose chats vLLM renders with code."""

OWN_TOKENIZERS = frozenset({"Kimi-Audio"})
"""Families of these whose plain texts are not encoded with `tokenizer.json` either."""

HARMONY_TOKENS = frozenset(
    {"<|start|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|call|>", "<|return|>"}
)
"""Added tokens that only models have which are talked to in the Harmony format."""

MISTRAL_TOKENIZERS = ("tekken.json", "tokenizer.model.v*")
MISTRAL_WEIGHTS = "consolidated*.safetensors"
"""vLLM takes Mistral's own tokenizer for a model that has both a file of these and weights in Mistral's format."""


@dataclass(frozen=True, slots=True)
class OwnRenderer:
    """That an engine writes a model's prompts with code of its own.

    Attributes:
        family: name of the format, or of the models that have it.
        evidence: what tells so.
        texts: whether plain texts are concerned, not only chats.
        needs_render: whether the engine's `/tokenize` gives other ids than its model sees, too.
    """

    family: str
    evidence: str
    texts: bool = False
    needs_render: bool = False

    def __str__(self) -> str:
        """For people."""
        what = "prompts" if self.texts else "chats"
        return f"the engine writes {what} for {self.family} with code of its own ({self.evidence})"


class _Config(msgspec.Struct):
    """What `config.json` says of the model."""

    model_type: str | None = None
    architectures: tuple[str, ...] | None = None


class _AddedToken(msgspec.Struct):
    content: str


class _Tokenizer(msgspec.Struct):
    """What `tokenizer.json` says of added tokens."""

    added_tokens: tuple[_AddedToken, ...] = ()


def find_own_renderer(folder: Path) -> OwnRenderer | None:
    """Whether an engine writes the prompts of the model in `folder` with code of its own; None when nothing says so.

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
    """The file of Mistral's tokenizer if vLLM takes it; a folder without any weights is taken for a copy without them."""
    found = next((file.name for name in MISTRAL_TOKENIZERS for file in sorted(folder.glob(name))), None)
    with_its_weights = any(folder.glob(MISTRAL_WEIGHTS)) or not any(folder.glob("*.safetensors"))
    return found if with_its_weights else None


def _added_tokens(folder: Path) -> frozenset[str]:
    tokenizer = _read(folder / "tokenizer.json", _Tokenizer)
    return frozenset(token.content for token in tokenizer.added_tokens) if tokenizer else frozenset()


def _read(file: Path, kind: type[T]) -> T | None:
    """What `file` says; None when there is no such file."""
    if not file.is_file():
        return None
    try:
        return msgspec.json.decode(read_text(file), type=kind)
    except msgspec.DecodeError as error:
        raise TokenizerLoadError(
            f"{file} is broken ({error}); copy it again from the model's repository"
        ) from error
