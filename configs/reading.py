"""Reading of YAML files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .document import Document, parse_document
from .errors import ConfigError, Problem

MAX_FILE_BYTES = 4 * 1024 * 1024
"""Most bytes of a file, far more than a configuration has: parsing a larger one, such as a log, would hold up requests."""


@dataclass(frozen=True, slots=True)
class GivenText:
    """Content that stands in place of a file; its relative paths start from the working directory.

    Attributes:
        name: shown in place of the file's path.
        text: YAML.
    """

    name: str
    text: str

    def __str__(self) -> str:
        """Return the name."""
        return self.name


def read_document(path: str | Path | GivenText) -> Document:
    """Read the document in the file `path`.

    Raises:
        ConfigError: the file cannot be read or is not YAML.
    """
    # a command line that is no UTF-8 becomes the bytes that it was, which are refused as those of a file are
    raw = path.text.encode(errors="surrogateescape") if isinstance(path, GivenText) else _read(Path(path))
    document = parse_document(raw)
    if isinstance(document, Problem):
        raise ConfigError(str(path), [document])
    return document


def _read(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            raw = opened.read(MAX_FILE_BYTES + 1)
        if len(raw) <= MAX_FILE_BYTES:
            return raw
        problem = Problem(f"has more than {MAX_FILE_BYTES} bytes; name a configuration file")
    except FileNotFoundError:
        problem = Problem("no such file")
    except IsADirectoryError:
        problem = Problem("is a folder, expected a YAML file")
    except OSError as error:
        problem = Problem(f"cannot be read: {error.strerror}")
    raise ConfigError(str(file), [problem])
