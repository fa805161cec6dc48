"""Hooks of schemathesis: bodies in MessagePack. Its process loads this file by itself."""

from __future__ import annotations

from typing import Any

import msgspec
import schemathesis

NO_MSGPACK = b"\xc1"


@schemathesis.serializer("application/msgpack")
def message_pack(_context: schemathesis.SerializationContext, value: Any) -> bytes:
    """Return the body of a call; it is invalid if the value cannot be written, such as an integer past 64 bits."""
    try:
        return msgspec.msgpack.encode(value)
    except (OverflowError, TypeError, UnicodeEncodeError):
        return NO_MSGPACK
