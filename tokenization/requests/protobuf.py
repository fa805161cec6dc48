"""Fields of serialized protobuf messages, read without generated classes: few are needed, of messages that others define."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from ..errors import MessageFormatError, MessageTooComplexError

MAX_FIELDS = 2048
"""Most fields of one message that are read, those of messages inside of it included, in about 3 ms."""

_MAX_VARINT_BYTES = 10
_VARINT, _FIXED_64, _LENGTH_DELIMITED, _FIXED_32 = 0, 1, 2, 5
_FIXED_BYTES = {_FIXED_64: 8, _FIXED_32: 4}

_CONTINUED = bytes(range(0x80, 0x100))

Field: TypeAlias = tuple[int, int | memoryview]
"""Number of a field with its value: an integer if it is a varint, otherwise its bytes."""


class FieldReader:
    """Reads the fields of one message, and of those inside of it, up to a limit together.

    Args:
        max_fields: the limit.
    """

    def __init__(self, max_fields: int = MAX_FIELDS) -> None:
        self._max_fields = self._n_left = max_fields

    def fields(self, message: memoryview) -> Iterator[Field]:
        """Yield the fields of a message, in the order of the bytes.

        Raises:
            MessageFormatError: it is no message; fields before the wrong place were yielded.
            MessageTooComplexError: the limit is reached; fields before it were yielded.
        Cost: about 1 µs per field, whatever its length.
        """
        place = 0
        while place < len(message):
            if not self._n_left:
                raise MessageTooComplexError(f"the message has more than {self._max_fields} fields")
            self._n_left -= 1
            number, value, place = _field(message, place)
            yield number, value


def _field(message: memoryview, place: int) -> tuple[int, int | memoryview, int]:
    """Return number and value of the field at a place, and the place after it."""
    tag, place = _varint(message, place)
    number, wire_type = tag >> 3, tag & 7
    if number == 0:
        raise MessageFormatError("a field has the number 0")
    if wire_type == _VARINT:
        value, place = _varint(message, place)
        return number, value, place
    if wire_type == _LENGTH_DELIMITED:
        n_bytes, place = _varint(message, place)
    elif wire_type in _FIXED_BYTES:
        n_bytes = _FIXED_BYTES[wire_type]
    else:
        raise MessageFormatError(f"a field has wire type {wire_type}")
    if place + n_bytes > len(message):
        raise MessageFormatError(f"a field of {n_bytes} bytes ends after the message of {len(message)} bytes")
    return number, message[place : place + n_bytes], place + n_bytes


def text(value: memoryview) -> str:
    """Return the value of a text field.

    Raises:
        MessageFormatError: not UTF-8.
    """
    try:
        return str(value, "utf-8")
    except UnicodeDecodeError as error:
        raise MessageFormatError("a text is not UTF-8") from error


def n_varints(packed: memoryview) -> int:
    """Return the number of varints in a packed field: of the bytes that end one."""
    return len(bytes(packed).translate(None, _CONTINUED))


def varints(packed: memoryview) -> Iterator[int]:
    """Yield the numbers of a packed field.

    Raises:
        MessageFormatError: it does not consist of whole numbers.
    """
    place = 0
    while place < len(packed):
        number, place = _varint(packed, place)
        yield number


def _varint(data: memoryview, place: int) -> tuple[int, int]:
    """Return a number and the place after it."""
    value = 0
    for number, byte in enumerate(data[place : place + _MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << (7 * number)
        if byte < 0x80:
            return value, place + number + 1
    raise MessageFormatError("a number has no end")
