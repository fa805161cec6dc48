"""Keys without a value in files of the reference picker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast


def without_nulls(data: object) -> object:
    """Return plain data without the keys whose value is null, which the reference takes as absent. Null entries of lists stay."""
    match data:
        case dict():
            entries = cast("Mapping[object, object]", data).items()
            return {key: without_nulls(value) for key, value in entries if value is not None}
        case list():
            return [without_nulls(each) for each in cast("Sequence[object]", data)]
        case _:
            return data
