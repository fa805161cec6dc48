"""One line of a trace in the format of the Mooncake project."""

from __future__ import annotations

import msgspec

BLOCK_SIZE = 512
"""Tokens per id in the published traces."""


class MooncakeLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """One request in the file; the last three fields and an unknown output are this project's own."""

    timestamp: float
    """Milliseconds from the start of the trace; with `after`, from the end of that request."""
    input_length: int
    output_length: int | None
    """None if the recorder did not see the response."""
    hash_ids: tuple[int, ...]
    session: str = ""
    after: int | None = None
    block_size: int | None = None
    """Tokens per id, in the first line of a trace with other than 512."""


_encode = msgspec.json.Encoder().encode


def encode_line(line: MooncakeLine) -> bytes:
    """Encode a line of a file, including its end."""
    return _encode(line) + b"\n"
