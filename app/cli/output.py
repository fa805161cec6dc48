"""The end of a command whose standard output takes no more: a closed pipe, a full disk."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import cast

from .exit_status import WRONG_USE, say_on_stderr

CLOSED_PIPE = 128 + signal.SIGPIPE
"""Exit status: the reader of the output has left, as `head` does; that of programs that the signal ends."""


class Output(io.FileIO):
    """A file descriptor that keeps the error of a failed write, whatever becomes of the exception on its way.

    Attributes:
        error: the first one, None if every write succeeded.
    """

    error: OSError | None = None

    def write(self, data: bytes | memoryview, /) -> int:  # type: ignore[override] # buffers have no type before 3.12
        """Write as a file does."""
        try:
            return super().write(data)
        except OSError as error:
            self.error = self.error or error
            raise


def ending_with_its_output(command: Callable[[], None]) -> None:
    """Run a command, and end the process if its output cannot be written: quietly if the reader has left."""
    output = _watched()
    try:
        try:
            command()
        finally:
            sys.stdout.flush()
    except BaseException:
        if output is None or output.error is None:
            raise
    if output is None or output.error is None:
        return
    with Path(os.devnull).open(
        "wb"
    ) as nowhere:  # what is buffered would fail again at the end of the interpreter
        os.dup2(nowhere.fileno(), output.fileno())
    if isinstance(output.error, BrokenPipeError):
        sys.exit(CLOSED_PIPE)
    say_on_stderr(f"the output cannot be written: {output.error.strerror}")
    sys.exit(WRONG_USE)


def _watched() -> Output | None:
    """Replace standard output by the same with an `Output`; None if there is none that is a file."""
    before = sys.stdout
    if not isinstance(before, io.TextIOWrapper):
        return None
    output = Output(before.fileno(), "w", closefd=False)
    sys.stdout = io.TextIOWrapper(
        output if before.write_through else io.BufferedWriter(cast("io.FileIO", output)),
        encoding=before.encoding,
        errors=before.errors,
        line_buffering=before.line_buffering,
        write_through=before.write_through,
    )
    return output
