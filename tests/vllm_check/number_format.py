"""The format of weights, keys and values in which a machine's processor computes fast."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

_BFLOAT16_FLAGS = frozenset({"avx512_bf16", "amx_bf16"})


class NumberFormat(NamedTuple):
    """A format by vLLM's name, and the bytes of a number."""

    name: str
    n_bytes: int


def format_for(cpu_info: str) -> NumberFormat:
    """Return the format for a processor: one without instructions for bfloat16 is several times as slow in that.

    Args:
        cpu_info: text in the form of `/proc/cpuinfo`.
    """
    flags = {flag for line in cpu_info.splitlines() if line.startswith("flags") for flag in line.split()}
    return NumberFormat("bfloat16", 2) if flags & _BFLOAT16_FLAGS else NumberFormat("float32", 4)


NUMBER_FORMAT = format_for(Path("/proc/cpuinfo").read_text())
"""That of this machine."""
