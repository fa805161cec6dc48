"""Files and folders for results: checked before long work, so that it is not lost at its end."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile

from .errors import OutputError


def check_file(option: str, file: Path) -> None:
    """Make the folder of a file, and check that the file can be written.

    What it contains stays, and a new one is not there yet: others may wait for it.

    Raises:
        OutputError: it cannot.
    """
    with writing(option, file):
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.exists():  # an error if the name is too long
            file.open("ab").close()
        else:
            TemporaryFile(dir=file.parent).close()


def check_folder(option: str, folder: Path) -> None:
    """Make a folder, and check that files can be written there.

    Raises:
        OutputError: they cannot.
    """
    with writing(option, folder):
        folder.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=folder).close()


@contextmanager
def writing(option: str, path: Path) -> Generator[None]:
    """Name option and path if the system refuses what is done inside.

    Raises:
        OutputError: it does.
    """
    try:
        yield
    except OSError as error:
        raise OutputError(f"{option}: {path} cannot be written: {error.strerror or error}") from error
