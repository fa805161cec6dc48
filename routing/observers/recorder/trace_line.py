"""One line of a trace in the format of the Mooncake project."""

from __future__ import annotations

import msgspec

BLOCK_SIZE = 512
"""Tokens an id stands for in the published traces."""


class MooncakeLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """One request as it stands in the file; the last three fields and an unknown output are this project's own."""

    timestamp: float
    """Milliseconds from the begin of the trace; with `after`, from the end of that request."""
    input_length: int
    output_length: int | None
    """None where the recorder did not see the answer."""
    hash_ids: tuple[int, ...]
    session: str = ""
    after: int | None = None
    block_size: int | None = None
    """Tokens an id stands for, in the first line of a trace that does not have 512."""


_encode = msgspec.json.Encoder().encode


def encode_line(line: MooncakeLine) -> bytes:
    """The line as it stands in a file, its end included."""
    return _encode(line) + b"\n"
