"""Commands of `kvatlas` run within the process of the test."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from typer.testing import CliRunner, Result

from kvatlas.app.cli.main import app


def invoked(arguments: Sequence[str], *, obj: object = None) -> Result:
    """Run a command and return its result; signals that it blocked for the process that it believes its own are unblocked."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        return CliRunner().invoke(app, list(arguments), obj=obj)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
