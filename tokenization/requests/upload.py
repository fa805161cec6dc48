"""The model of an upload in parts (multipart/form-data), such as audio for `/audio/transcriptions`."""

from __future__ import annotations

import re

from ...configs.section import MAX_NAME_CHARS

MAX_EDGE_BYTES = 64 * 1024
"""Longest beginning, and end, of an upload in which the model is looked for: between them is the file."""

MAX_PARTS = 64
"""Most parts that are read in each of both."""

_DELIMITER = re.compile(rb"--[^\r\n]{1,70}(?=\r\n)")
"""The first line of an upload, at most as long as RFC 2046 allows."""

_IS_MODEL = re.compile(
    rb'^content-disposition:[ \t]*form-data[ \t]*;[ \t]*name=(?:"model"|model)[ \t]*$',
    re.IGNORECASE | re.MULTILINE,
)


def model_of_upload(body: bytes) -> str:
    """Return the content of the field `model`, before or after a file; empty if there is none, or if it is no name.

    Args:
        body: the upload, or its beginning. Only `MAX_EDGE_BYTES` of both of its ends are read.
    """
    first = _DELIMITER.match(body)
    if first is None:
        return ""
    edges = (body[:MAX_EDGE_BYTES], body[max(MAX_EDGE_BYTES, len(body) - MAX_EDGE_BYTES) :])
    return next((name for edge in edges if (name := _model_in(b"\r\n" + edge, b"\r\n" + first[0]))), "")


def _model_in(piece: bytes, delimiter: bytes) -> str:
    # what comes before the first delimiter is no part, and what comes after the last one may be one that is not whole
    for part in piece.split(delimiter, MAX_PARTS + 1)[1:-1]:
        headers, _, content = part.partition(b"\r\n\r\n")
        if _IS_MODEL.search(headers.replace(b"\r\n", b"\n")):
            return _name(content)
    return ""


def _name(content: bytes) -> str:
    try:
        name = content.decode()
    except UnicodeDecodeError:
        return ""
    return name if len(name) <= MAX_NAME_CHARS else ""
