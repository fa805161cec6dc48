"""A command on a pseudo-terminal, with its output, its window size and key presses."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import re
import signal
import struct
import sys
import termios
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from support.waiting import until

HOME = "\x1b[H"
"""The start of each screen that rich draws on the alternate buffer."""

LEAVES_SCREEN, SHOWS_CURSOR = "\x1b[?1049l", "\x1b[?25h"
_SEQUENCE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass
class Terminal:
    """A terminal and the command that runs on it.

    Attributes:
        process: the command.
        written: all of its output.
    """

    process: asyncio.subprocess.Process
    written: str = ""
    _side: int = field(default=-1)

    @property
    def screen(self) -> list[str]:
        """Return the lines of the last complete screen, without escape sequences."""
        whole = self.written.rpartition(HOME)[2] if HOME in self.written else self.written
        return [line.rstrip() for line in _SEQUENCE.sub("", whole).replace("\r", "").splitlines()]

    async def until_shown(self, *texts: str) -> None:
        """Wait until the screen has these texts."""
        await until(
            lambda: all(text in "\n".join(self.screen) for text in texts), what=f"{texts} on the screen"
        )

    def resize(self, *, columns: int, lines: int) -> None:
        fcntl.ioctl(self._side, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.process.send_signal(
            signal.SIGWINCH
        )  # the kernel signals only the foreground process group of a session

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        self.process.send_signal(signal.SIGINT)

    def read(self) -> None:
        try:
            self.written += os.read(self._side, 65536).decode(errors="replace")
        except OSError:  # EOF: the command has ended
            asyncio.get_running_loop().remove_reader(self._side)


@asynccontextmanager
async def terminal(
    *command: str, columns: int = 100, lines: int = 24, kind: str = "xterm-256color"
) -> AsyncGenerator[Terminal]:
    """Run `kvatlas` with these arguments on a terminal; interrupt it at the end if it still runs."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    environment = {
        name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "kvatlas.app.cli.main", *command),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment | {"TERM": kind},
    )
    os.close(theirs)
    shown = Terminal(process, _side=ours)
    asyncio.get_running_loop().add_reader(ours, shown.read)
    try:
        yield shown
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
        asyncio.get_running_loop().remove_reader(ours)
        os.close(ours)
