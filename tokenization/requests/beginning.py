"""The model of a request of which only the beginning has arrived, or may be read."""

from __future__ import annotations

import re

import msgspec

from ...configs.section import MAX_NAME_CHARS
from .upload import model_of_upload

MAX_BEGINNING_BYTES = 1024 * 1024
"""Longest beginning of a body that is read if there is no room or no time for the rest."""

MAX_PIECES = 20_000
"""Most strings and brackets read: a beginning made of brackets then takes about 5 ms."""

# Possessive, and a string that does not end is a piece too: each byte is read once.
_PIECE = re.compile(rb'[{}\[\]]|("[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z))\s*+(:?)', re.DOTALL)
_MODEL = re.compile(rb'\s*+("[^"\\]*+(?:\\.[^"\\]*+)*+")', re.DOTALL)
_decode_string = msgspec.json.Decoder(str).decode


def model_of_beginning(beginning: bytes) -> str:
    """Return the model that a JSON object or an upload names; empty if the beginning does not show it, or its name is too long.

    Only a member of the object itself counts, not one inside of a message or tool.
    """
    if beginning.startswith(b"--"):
        return model_of_upload(beginning)
    depth = 0
    for n_pieces, piece in enumerate(_PIECE.finditer(beginning)):
        if n_pieces == MAX_PIECES:
            break
        match piece[0]:
            case b"{" | b"[":
                depth += 1
            case b"}" | b"]":
                depth -= 1
            case _ if depth == 1 and piece[2] and piece[1] == b'"model"':
                return _name(_MODEL.match(beginning, piece.end()))
            case _:
                pass
    return ""


def _name(found: re.Match[bytes] | None) -> str:
    if found is None:
        return ""
    try:
        name = _decode_string(found[1])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""
    return name if len(name) <= MAX_NAME_CHARS else ""
