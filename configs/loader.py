"""A configuration file as typed data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec

from .checks import check_config
from .decode import decode
from .document import parse_document
from .errors import ConfigError, Problem
from .schema import KVAtlasConfig


def load_config(path: str | Path) -> KVAtlasConfig:
    """The configuration in the YAML file `path`, with every default filled in.

    A relative `model.tokenizer` is taken from the folder of the file and comes back absolute.

    Raises:
        ConfigError: the file cannot be read, is not YAML, or says something the schema or the checks do not allow;
            names every problem with its line and the path of the key.
    """
    file = Path(path)
    document = parse_document(_read(file))
    if isinstance(document, Problem):
        raise ConfigError(str(path), [document])
    config = decode(document.data, KVAtlasConfig)
    problems = config if isinstance(config, list) else check_config(config)
    if isinstance(config, list) or problems:
        placed = [replace(each, line=document.line_of(each.path)) for each in problems]
        raise ConfigError(str(path), sorted(placed, key=lambda each: each.line or 0))
    return _with_absolute_tokenizer(config, file.parent)


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        problem = Problem("no such file")
    except IsADirectoryError:
        problem = Problem("is a folder, expected a YAML file")
    except OSError as error:
        problem = Problem(f"cannot be read: {error.strerror}")
    raise ConfigError(str(file), [problem])


def _with_absolute_tokenizer(config: KVAtlasConfig, folder: Path) -> KVAtlasConfig:
    if not config.model.tokenizer:
        return config
    tokenizer = str(folder.absolute() / config.model.tokenizer)
    return msgspec.structs.replace(config, model=msgspec.structs.replace(config.model, tokenizer=tokenizer))
