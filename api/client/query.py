"""Bodies of REST calls in MessagePack, with token ids and hashes as binary: half as long as JSON, and read at once.

body = query_body(token_ids, model="qwen3")
answer = requests.post(f"{url}/query", data=body, headers={"Content-Type": MSGPACK}).json()
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable

import msgspec

MSGPACK = "application/msgpack"
"""Content type of the bodies."""


def query_body(token_ids: Iterable[int], **fields: str | int | None) -> bytes:
    """Return the body of `/query`, or of `/v1/score`.

    Args:
        token_ids: of the whole prompt, 0 .. 2**32 - 1; an `array('I')` costs nothing to convert.
        fields: further fields of the call: `model`, `cache_salt`, ...; None leaves one out.
    Raises:
        OverflowError: a token id is out of range.
    """
    return _body("token_ids", array("I", token_ids), fields)


def query_by_hash_body(seq_hashes: Iterable[int], **fields: str | int | None) -> bytes:
    """Return the body of `/query_by_hash` with chained block keys, 0 .. 2**64 - 1; otherwise as `query_body`."""
    return _body("seq_hashes", array("Q", seq_hashes), fields)


def _body(name: str, numbers: array[int], fields: dict[str, str | int | None]) -> bytes:
    if sys.byteorder != "little":
        numbers.byteswap()
    given = {field: value for field, value in fields.items() if value is not None}
    return msgspec.msgpack.encode({**given, name: numbers.tobytes()})
