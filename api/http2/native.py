"""Support of the transport on this machine."""

from __future__ import annotations


def obstacle(*, with_tls: bool = False) -> str | None:
    """Return what the transport lacks on this machine; None if it can be used.

    Args:
        with_tls: whether its connections speak TLS.
    """
    try:
        from ._native import Session, load_tls  # noqa: PLC0415 - absent if it was built without a compiler

        Session(max_streams=1, max_message_bytes=1, max_early_ends=1, spare_bytes=0)
        if with_tls:
            load_tls()
    except ImportError:
        return "kvatlas was installed without a C++20 compiler"
    except RuntimeError as error:
        return str(error)
    return None


def has_http2(*, with_tls: bool = False) -> bool:
    """Return whether the native part was built and finds its libraries."""
    return obstacle(with_tls=with_tls) is None
