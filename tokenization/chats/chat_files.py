"""Loader of a model's chat templates from the files of its folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from ..errors import RenderError, TokenizerLoadError
from .chat import DEFAULT, ChatOptions, ChatRenderer, ChatTemplate

CONFIG_FILE = "tokenizer_config.json"
TEMPLATE_FILE = "chat_template.jinja"
MORE_TEMPLATES = "additional_chat_templates"
"""Folder of further templates; the file names are the template names."""

TOKENS_FILE = "special_tokens_map.json"
"""File of the special tokens of older models."""

PROCESSOR_FILES = ("processor_config.json", "chat_template.json")
"""Files that may contain the `chat_template` of a model's processor; the first one found is used."""


class _NamedTemplate(msgspec.Struct):
    name: str
    template: str


class _Token(msgspec.Struct):
    content: str


def load_chat(
    folder: Path, *, options: ChatOptions | None = None, special_tokens: Mapping[str, str] | None = None
) -> ChatRenderer | None:
    """Load the templates in `folder`; None if neither the folder nor the options have one.

    `chat_template.jinja` and `additional_chat_templates/*.jinja` replace the templates of `tokenizer_config.json`. A
    template in `processor_config.json` or `chat_template.json` is for requests without tools.

    Args:
        folder: of the model.
        options: the engine's options for templates; None for its defaults.
        special_tokens: default special tokens; those in the files take precedence.

    Raises:
        TokenizerLoadError: a file is broken; the message says which and what to do.
    """
    config = _object(folder / CONFIG_FILE)
    sources = _template_files(folder) or _config_templates(folder / CONFIG_FILE, config.get("chat_template"))
    options = options or ChatOptions()
    processor = _processor_template(folder)
    if not sources and processor is None and options.template is None:
        return None
    return ChatRenderer(
        templates={name: _compiled(source, f"{name!r} in {folder}") for name, source in sources.items()},
        special_tokens={**(special_tokens or {}), **_special_tokens(folder, config)},
        without_tools=None if processor is None else _compiled(processor, f"of the processor in {folder}"),
        chosen=None if options.template is None else _compiled(options.template, "of model.chat.template"),
        options=options,
    )


def _compiled(source: str, what: str) -> ChatTemplate:
    try:
        return ChatTemplate(source)
    except RenderError as error:
        raise TokenizerLoadError(f"chat template {what} cannot be used: {error}") from error


def _template_files(folder: Path) -> dict[str, str]:
    files = {file.stem: file for file in sorted((folder / MORE_TEMPLATES).glob("*.jinja"))}
    if (folder / TEMPLATE_FILE).is_file():
        files[DEFAULT] = folder / TEMPLATE_FILE
    return {name: read_text(file) for name, file in files.items()}


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


def _processor_template(folder: Path) -> str | None:
    found = (_object(folder / name).get("chat_template") for name in PROCESSOR_FILES)
    return next((template for template in found if isinstance(template, str)), None)


def _special_tokens(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Return the tokens with names like `bos_token`, given as a string or as an object with `content`.

    Source: transformers 5.19 tokenization_utils_base.py; models with `added_tokens_decoder` have no other file for them.
    """
    fields = dict(config)
    if "added_tokens_decoder" not in config:
        fields |= _object(folder / TOKENS_FILE)
    named = {name: value for name, value in fields.items() if name.endswith("_token")}
    if isinstance(more := fields.get("extra_special_tokens"), dict):
        named |= more
    return {name: text for name, value in named.items() if (text := _token_text(value)) is not None}


def _token_text(value: object) -> str | None:
    """Return the text of a token; None for other values, such as the flag `add_bos_token`."""
    try:
        token = msgspec.convert(value, str | _Token)
    except msgspec.ValidationError:
        return None
    return token if isinstance(token, str) else token.content


def _object(file: Path) -> dict[str, Any]:
    """Return the JSON object in `file`; empty if the file does not exist."""
    if not file.is_file():
        return {}
    try:
        return msgspec.json.decode(read_text(file), type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise TokenizerLoadError(
            f"{file} is not a JSON object ({error}); copy it again from the model's repository"
        ) from error


def read_text(file: Path) -> str:
    """Read the text of `file`.

    Raises:
        TokenizerLoadError: it cannot be read, or is not UTF-8.
    """
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TokenizerLoadError(f"{file} cannot be read: {error}") from error
