"""The tokenizer of the served model, from local files."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer

from .chat import DEFAULT, ChatRenderer, ChatTemplate
from .converted import SOURCES, convert
from .errors import RenderError, TokenizerLoadError
from .segment_cache import CACHE_BYTES
from .segment_encoder import SegmentEncoder, encode_texts

TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
TEMPLATE_FILE = "chat_template.jinja"
MORE_TEMPLATES = "additional_chat_templates"
"""Folder of further templates, named by their files."""

MAX_FILES_NAMED = 10


class _NamedTemplate(msgspec.Struct):
    name: str
    template: str


class _Token(msgspec.Struct):
    content: str


@dataclass(frozen=True, slots=True)
class ModelTokenizer:
    """Text to ids of one model.

    Attributes:
        encoder: the model's `tokenizer.json`, with truncation and padding off.
        chat: the model's chat templates, None when it has none.
        segments: encodes as `encode` does, and remembers what it encoded.
    """

    encoder: Tokenizer
    chat: ChatRenderer | None
    segments: SegmentEncoder

    def encode(self, text: str, *, add_special_tokens: bool) -> array[int]:
        """Token ids of the whole text, `array('I')`; nothing is remembered.

        Raises:
            EncodeError: the tokenizer does not take this text.
        Cost: 0.7 µs a token with the small vocabulary of the tests, about twice that with one of 32,000.
        """
        return array("I", encode_texts(self.encoder, [text], adds=add_special_tokens)[0])


def load_tokenizer(path: str | Path, *, cache_bytes: int = CACHE_BYTES) -> ModelTokenizer:
    """The tokenizer at `path`: a model folder, or one `tokenizer.json`, which then has no chat template.

    Of a folder it reads `tokenizer.json`, and where present `tokenizer_config.json` (special tokens, chat templates),
    `chat_template.jinja` and `additional_chat_templates/*.jinja`, which replace the templates of the former. Without
    `tokenizer.json` it takes what `converted.SOURCES` names, if `transformers` is installed.

    Args:
        path: local folder or file.
        cache_bytes: bound of the memory for encoded segments.

    Raises:
        TokenizerLoadError: a file is missing or broken; the message says which and what to do.
    Cost: 3 µs a vocabulary entry, during which other threads of the process stand still, and 20 ms.
    """
    path = Path(path)
    if path.is_file():
        return _made(_load_encoder(path), None, cache_bytes)
    if not path.is_dir():
        raise TokenizerLoadError(
            f"tokenizer path {path} does not exist; set model.tokenizer to a local folder with {TOKENIZER_FILE}, "
            f"or to such a file"
        )
    if (path / TOKENIZER_FILE).is_file():
        return _made(_load_encoder(path / TOKENIZER_FILE), _load_chat(path, {}), cache_bytes)
    if not any((path / name).is_file() for name in SOURCES):
        raise TokenizerLoadError(
            f"tokenizer folder {path} has no {TOKENIZER_FILE} (it has {_listing(path)}); copy it there from the "
            f"model's repository, or write it with transformers: AutoTokenizer.from_pretrained(...).save_pretrained(...)"
        )
    encoder, special_tokens = convert(path)
    return _made(encoder, _load_chat(path, special_tokens), cache_bytes)


def _made(encoder: Tokenizer, chat: ChatRenderer | None, cache_bytes: int) -> ModelTokenizer:
    encoder.no_truncation()
    encoder.no_padding()
    return ModelTokenizer(encoder, chat, SegmentEncoder(encoder, cache_bytes=cache_bytes))


def _listing(folder: Path) -> str:
    names = sorted(entry.name for entry in folder.iterdir())
    if not names:
        return "no files"
    more = ", ..." if len(names) > MAX_FILES_NAMED else ""
    return ", ".join(names[:MAX_FILES_NAMED]) + more


def _load_encoder(file: Path) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(file))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        # The library raises its base class for every kind of broken file, and its panics are none of `Exception`.
        raise TokenizerLoadError(
            f"{file} is not a readable tokenizer ({error}); copy it again from the model's repository"
        ) from error


def _load_chat(folder: Path, special_tokens: Mapping[str, str]) -> ChatRenderer | None:
    """The templates of a folder; `special_tokens` are known to them too where the configuration names no others."""
    config = _load_config(folder / CONFIG_FILE)
    sources = _template_files(folder) or _config_templates(folder / CONFIG_FILE, config.get("chat_template"))
    if not sources:
        return None
    templates: dict[str, ChatTemplate] = {}
    for name, source in sources.items():
        try:
            templates[name] = ChatTemplate(source)
        except RenderError as error:
            raise TokenizerLoadError(f"chat template {name!r} in {folder} cannot be used: {error}") from error
    return ChatRenderer(templates=templates, special_tokens={**special_tokens, **_special_tokens(config)})


def _load_config(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        return msgspec.json.decode(_read(file), type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise TokenizerLoadError(
            f"{file} is not a JSON object ({error}); copy it again from the model's repository"
        ) from error


def _template_files(folder: Path) -> dict[str, str]:
    files = {file.stem: file for file in sorted((folder / MORE_TEMPLATES).glob("*.jinja"))}
    if (folder / TEMPLATE_FILE).is_file():
        files[DEFAULT] = folder / TEMPLATE_FILE
    return {name: _read(file) for name, file in files.items()}


def _config_templates(file: Path, value: object) -> dict[str, str]:
    try:
        found = msgspec.convert(value, str | list[_NamedTemplate] | None)
    except msgspec.ValidationError as error:
        raise TokenizerLoadError(
            f"chat_template in {file} is neither a string nor a list of named templates: {error}"
        ) from error
    match found:
        case None:
            return {}
        case str():
            return {DEFAULT: found}
        case _:
            return {named.name: named.template for named in found}


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Tokens under names like `bos_token`, written as a string or as an object with `content`."""
    tokens: dict[str, str] = {}
    for name, value in config.items():
        if not name.endswith("_token"):
            continue
        try:
            token = msgspec.convert(value, str | _Token)
        except msgspec.ValidationError:
            continue  # flags such as add_bos_token, and null
        tokens[name] = token if isinstance(token, str) else token.content
    return tokens


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TokenizerLoadError(f"{file} cannot be read: {error}") from error
