"""Files that hold one bearer token."""

from __future__ import annotations

from pathlib import Path

_FIRST_VISIBLE, _LAST_VISIBLE = ord("!"), ord("~")


def read_token(file: Path) -> bytes:
    """Return the token that a file holds, without white space around it.

    Raises:
        ValueError: it cannot be read, or holds nothing that every client sends alike. The message has nothing of its content.
    """
    try:
        token = file.read_bytes().strip()
    except OSError as error:
        raise ValueError(f"cannot read {file}: {error.strerror}") from None
    if not token or len(token.split()) > 1:
        raise ValueError(f"{file} must hold one token, without spaces")
    # Clients disagree about the encoding of other characters in a header, so that a token with one would match for some.
    if any(not _FIRST_VISIBLE <= byte <= _LAST_VISIBLE for byte in token):
        raise ValueError(
            f"{file} must hold visible ASCII characters alone, and no byte order mark; "
            "`openssl rand -hex 32` writes such a token"
        )
    return token
