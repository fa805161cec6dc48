"""Masking of secrets in logs, REST responses and differences."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import cast

MASK = "***"

_SECRET_KEY = re.compile(r"(?i).*(password|secret|credential|api_?key)|token")
_USER_INFO = re.compile(r"(?<=://)[^/?#\s]*@")


def masked(data: object) -> object:
    """Replace user and password in URLs, and texts under keys that name a secret, by `***` in plain data."""
    match data:
        case str():
            return _USER_INFO.sub(f"{MASK}@", data)
        case dict():
            entries = cast("Mapping[object, object]", data).items()
            return {key: _masked_entry(key, value) for key, value in entries}
        case list() | tuple():
            return [masked(each) for each in cast("Sequence[object]", data)]
        case _:
            return data


def _masked_entry(key: object, value: object) -> object:
    is_secret = isinstance(value, str) and value and _SECRET_KEY.fullmatch(str(key))
    return MASK if is_secret else masked(value)
