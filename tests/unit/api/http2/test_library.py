"""The fixes that a libnghttp2 shows, with libraries that are built for it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from kvatlas.api.http2 import library
from kvatlas.api.http2.library import Http2Library, installed_library

_VERSION = """
struct info { int age; int version_num; const char *version_str; };
struct info *nghttp2_version(int least) { static struct info found = {1, 0, "1.52.0"}; return &found; }
"""
_RESETS = "void nghttp2_option_set_stream_reset_rate_limit(void) {}\n"
_CONTINUATIONS = "void nghttp2_option_set_max_continuations(void) {}\n"


@pytest.mark.parametrize(
    ("source", "unfixed"),
    [
        pytest.param("", ["CVE-2023-44487", "CVE-2024-28182"], id="old"),
        pytest.param(_RESETS, ["CVE-2024-28182"], id="one_fix"),
        pytest.param(_RESETS + _CONTINUATIONS, [], id="old_version_with_the_fixes_of_a_distribution"),
    ],
)
def test_fixes_are_recognized_whatever_the_version_is(
    source: str, unfixed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "library.c").write_text(_VERSION + source)
    built = tmp_path / "library.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", built, tmp_path / "library.c"], check=True)
    monkeypatch.setattr(library, "NAME", str(built))

    found = installed_library()

    assert found is not None
    assert (found.version, [each.split()[0] for each in found.unfixed]) == ("1.52.0", unfixed)


def test_machine_without_the_library_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "NAME", "libnghttp2-that-is-not-there.so")
    assert installed_library() is None


def test_library_of_this_machine_has_a_version() -> None:
    found = installed_library()
    assert isinstance(found, Http2Library)
    assert found.version.startswith("1.")
