"""A process whose clock of the day a test can set, by libfaketime; its monotonic clock stays."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

_LIBRARY = Path(sys.executable).parent / "libfaketimeMT.so.1"

needs_faketime = pytest.mark.skipif(
    not _LIBRARY.exists(), reason="libfaketime is missing: make test-programs"
)


class Clock:
    """The clock of one process.

    Attributes:
        environment: variables of the process.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self.jump(0)
        self.environment = {
            "LD_PRELOAD": str(_LIBRARY),
            "FAKETIME_TIMESTAMP_FILE": str(file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def jump(self, seconds: int) -> None:
        """Set the clock so many seconds apart from that of the machine."""
        self._file.write_text(f"{seconds:+d}")
