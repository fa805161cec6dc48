"""Reading of YAML files."""

from __future__ import annotations

from pathlib import Path

from .document import Document, parse_document
from .errors import ConfigError, Problem


def read_document(path: str | Path) -> Document:
    """Read the document in the file `path`.

    Raises:
        ConfigError: the file cannot be read or is not YAML.
    """
    document = parse_document(_read(Path(path)))
    if isinstance(document, Problem):
        raise ConfigError(str(path), [document])
    return document


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
