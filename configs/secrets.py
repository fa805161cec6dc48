"""Masking of secrets in logs, messages, REST responses and differences."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import cast

MASK = "***"

_SECRET_KEY = re.compile(r"(?i).*(password|secret|credential|api_?key)|token")
_USER_INFO = re.compile(r"(?<=://)[^/?#\s]*@")
_BROKEN_USER_INFO = re.compile(r"(?<=://)\S*@")
_QUERY = re.compile(r"(?<=://)([^\s?]*\?)([^\s#'\"]*)")
_VALUE = re.compile(r"=[^&]*")


def masked(data: object) -> object:
    """Replace by `***` what may be secret in plain data.

    That is the user, the password and the query's values in URLs, and texts under keys that name a secret.
    """
    match data:
        case str():
            return masked_text(data)
        case dict():
            entries = cast("Mapping[object, object]", data).items()
            return {key: _masked_entry(key, value) for key, value in entries}
        case list() | tuple():
            return [masked(each) for each in cast("Sequence[object]", data)]
        case _:
            return data


def masked_text(text: str) -> str:
    """Replace the user, the password and the query's values in the URLs of a text."""
    return _QUERY.sub(_masked_query, _USER_INFO.sub(f"{MASK}@", text))


def masked_message(text: str) -> str:
    """Mask a message about a URL that may be malformed, so that a password may hold any character: up to the last `@`."""
    return _QUERY.sub(_masked_query, _BROKEN_USER_INFO.sub(f"{MASK}@", text))


def _masked_query(url: re.Match[str]) -> str:
    return url[1] + _VALUE.sub(f"={MASK}", url[2])


def _masked_entry(key: object, value: object) -> object:
    is_secret = isinstance(value, str) and value and _SECRET_KEY.fullmatch(str(key))
    return MASK if is_secret else masked(value)
