"""Whether this machine has what the transport needs."""

from __future__ import annotations


def has_http2() -> bool:
    """Whether the native part was built here and finds its library."""
    try:
        from ._native import Session  # noqa: PLC0415 - absent where no compiler was

        Session(max_streams=1, max_message_bytes=1)
    except (ImportError, RuntimeError):
        return False
    return True
