"""The limit of output tokens that a request sets."""

from __future__ import annotations

import msgspec


class _Limits(msgspec.Struct):
    max_completion_tokens: int | None = None
    max_tokens: int | None = None
    max_output_tokens: int | None = None


_decode = msgspec.json.Decoder(_Limits).decode


def output_limit(body: bytes) -> int | None:
    """Return the most output tokens that a JSON body allows, None if it sets no such limit or cannot be read.

    Cost: one pass over the body; called only if output tokens count as load.
    """
    try:
        limits = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    found = (limits.max_completion_tokens, limits.max_tokens, limits.max_output_tokens)
    return next((limit for limit in found if limit is not None and limit >= 0), None)
