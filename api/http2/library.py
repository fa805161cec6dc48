"""The installed libnghttp2: its version, and the attacks on HTTP/2 that it does not stop."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

NAME = "libnghttp2.so.14"

_FIXES = {
    "nghttp2_option_set_stream_reset_rate_limit": "CVE-2023-44487 (rapid reset, fixed in 1.57)",
    "nghttp2_option_set_max_continuations": "CVE-2024-28182 (endless CONTINUATION frames, fixed in 1.61)",
}
"""Function that came with a fix -> the fix. Distributions add fixes to old versions, so the version does not show them."""


@dataclass(frozen=True, slots=True)
class Http2Library:
    """The installed libnghttp2.

    Attributes:
        version: as it names itself.
        unfixed: known attacks to which it is open.
    """

    version: str
    unfixed: tuple[str, ...]


class _Info(ctypes.Structure):
    """The begin of `nghttp2_info`."""

    _fields_ = (("age", ctypes.c_int), ("version_num", ctypes.c_int), ("version_str", ctypes.c_char_p))


def installed_library() -> Http2Library | None:
    """Return the libnghttp2 of this machine, None if there is none."""
    try:
        library = ctypes.CDLL(NAME)
    except OSError:
        return None
    version = library.nghttp2_version
    version.restype = ctypes.POINTER(_Info)
    return Http2Library(
        version=version(0).contents.version_str.decode(),
        unfixed=tuple(attack for function, attack in _FIXES.items() if not hasattr(library, function)),
    )
