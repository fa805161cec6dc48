"""kvatlas declares a part of libnghttp2 by itself; the compiler compares that with the library's header."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

NATIVE = Path("api/http2/native")
CHECKER = Path(__file__).with_name("nghttp2_header.cpp")
FOLDERS = (Path(sys.prefix, "include"), Path("/usr/include"))
COMPILER = shutil.which("g++")

pytestmark = [
    pytest.mark.skipif(COMPILER is None, reason="needs g++"),
    pytest.mark.skipif(
        not any((folder / "nghttp2/nghttp2.h").exists() for folder in FOLDERS),
        reason="needs nghttp2.h (make test-programs)",
    ),
]


def compiled(declarations: Path) -> subprocess.CompletedProcess[str]:
    folders = [f"-I{folder}" for folder in (declarations, *FOLDERS[:1])]
    command = [str(COMPILER), "-std=c++20", "-fsyntax-only", *folders, str(CHECKER)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_declarations_are_those_of_the_library() -> None:
    result = compiled(NATIVE)

    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("ours", "wrong", "named"),
    [
        pytest.param("uint8_t flags;", "uint16_t flags;", "nghttp2_nv", id="member"),
        pytest.param("int (*)(Session*, uint32_t)", "int (*)(Session*, int32_t)", "terminate", id="function"),
        pytest.param("ENHANCE_YOUR_CALM = 11", "ENHANCE_YOUR_CALM = 12", "ENHANCE_YOUR_CALM", id="value"),
    ],
)
def test_declaration_that_differs_is_found(ours: str, wrong: str, named: str, tmp_path: Path) -> None:
    text = (NATIVE / "nghttp2.h").read_text()
    assert ours in text
    (tmp_path / "nghttp2.h").write_text(text.replace(ours, wrong))

    result = compiled(tmp_path)

    assert result.returncode != 0
    assert named in result.stderr
