"""Threads rest as long as chunks of one turn need to come; the compiler checks the cases."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

NATIVE = Path("api/http2/native")
CASES = Path(__file__).with_name("pace.cpp")
COMPILER = shutil.which("g++")


@pytest.mark.skipif(COMPILER is None, reason="needs g++")
def test_threads_rest_until_several_chunks_have_come() -> None:
    result = subprocess.run(
        [str(COMPILER), "-std=c++20", "-fsyntax-only", f"-I{NATIVE}", str(CASES)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert result.returncode == 0, result.stderr
