"""Libraries that the transport cannot use."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ASK = "from kvatlas.api.http2.native import obstacle; print(obstacle())"


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
@pytest.mark.parametrize(
    ("number", "text"),
    [pytest.param(0x012800, "1.40.0", id="old"), pytest.param(0x012900, "1.41.0", id="oldest")],
)
def test_library_is_refused_when_it_is_older_than_its_limits(number: int, text: str, tmp_path: Path) -> None:
    source = tmp_path / "old.c"
    source.write_text(
        f'static struct {{ int age, number; const char *text, *protocol; }} info = {{1, {number}, "{text}", "h2"}};'
        "void *nghttp2_version(int least) { return &info; }"
    )
    library = tmp_path / "libnghttp2.so.14"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)

    found = subprocess.run(
        [sys.executable, "-c", ASK],
        env=os.environ | {"LD_LIBRARY_PATH": str(tmp_path)},
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip

    if text == "1.41.0":  # new enough, but it has nothing else
        assert "has no nghttp2_" in found
    else:
        assert "is version 1.40.0, older than 1.41.0" in found


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_tls_without_its_library_is_an_obstacle_for_tls_alone(tmp_path: Path) -> None:
    source = tmp_path / "other.c"
    source.write_text("int nothing;")
    library = tmp_path / "libssl.so.3"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    ask = "from kvatlas.api.http2.native import obstacle; print(obstacle(), obstacle(with_tls=True))"

    found = subprocess.run(
        [sys.executable, "-c", ask],
        env=os.environ | {"LD_LIBRARY_PATH": str(tmp_path)},
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip

    assert found.startswith("None libssl.so.3 has no function ")
