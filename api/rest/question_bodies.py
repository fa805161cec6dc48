"""Bodies of questions: JSON, or MessagePack with lists of integers as binary."""

from __future__ import annotations

import json
import sys
from array import array
from collections.abc import Callable
from typing import Any, ClassVar, Generic, Protocol, TypeVar, cast

import msgspec
from fastapi.exceptions import RequestValidationError
from msgspec import Raw
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException

from ...tokenization.requests.cost import LIGHT_BYTES, decoding_cost
from ...tokenization.requests.numbers import NumberFields, cut_numbers
from .errors import unreadable

JSON, MSGPACK = "application/json", "application/msgpack"

MAX_MEMBERS = 64
"""Members of a body in MessagePack; the models have at most seven."""

MAX_VALUE_BYTES = 32 * 1024
"""Bytes in MessagePack that are neither binary nor text. Each may be a list: 15 ms, as for JSON of twice the length."""

_BINARY = frozenset({0xC4, 0xC5, 0xC6})
_CHEAP = _BINARY | {*range(0xA0, 0xC0), 0xD9, 0xDA, 0xDB}
"""First bytes of binary, and of binary and text, in MessagePack."""


class Question(Protocol):
    """A model of a body, whose `numbers` are its lists of integers."""

    numbers: ClassVar[NumberFields]


ModelT = TypeVar("ModelT", bound=BaseModel)


class QuestionBodies(Generic[ModelT]):
    """Reads the bodies of one question.

    Args:
        model: of a body; it is also a `Question`.
        max_cost: limit of one body; see `tokenization.requests.cost`.
    """

    def __init__(self, model: type[ModelT], *, max_cost: int) -> None:
        self._model, self._max_cost = model, max_cost
        self._numbers = cast("type[Question]", model).numbers

    def at_once(self, body: bytes | bytearray) -> ModelT | None:
        """Return a valid body of JSON whose length is in its lists of integers; None if it is another one, or invalid.

        Cost: 1 ns per byte, and up to 12 ms for the rest.
        """
        cut = cut_numbers(body, self._numbers)
        if cut is None or len(cut.rest) > LIGHT_BYTES:
            return None
        decode: Callable[[bytes], Any] = json.loads
        if len(body) > LIGHT_BYTES:
            # Each length is decoded as without lists: the decoders differ about numbers past 64 bits, NaN and surrogates.
            decode = msgspec.json.decode
            if decoding_cost(cut.rest) + cut.commas > self._max_cost:
                return None
        try:
            return self._model.model_validate({**decode(cut.rest), **cut.lists})
        except (ValueError, RecursionError):
            return None  # the whole body has the place of the error

    def decoded(self, body: bytes) -> ModelT:
        """Decode and check a body of JSON.

        Raises:
            HTTPException: it costs too much.
            RequestValidationError: it is no JSON, or does not fit.
        """
        if (asked := self.at_once(body)) is not None:
            return asked
        self._check_cost(decoding_cost(body))
        try:
            return self._checked(msgspec.json.decode(body))
        except UnicodeDecodeError as error:
            raise unreadable(_placed(error, body)) from None
        except (msgspec.DecodeError, RecursionError) as error:
            raise unreadable(error) from None

    def unpacked(self, body: bytes | bytearray) -> ModelT:
        """Decode and check a body of MessagePack. All that is not binary or text is read as JSON would be.

        Raises:
            HTTPException: it costs too much.
            RequestValidationError: it is no MessagePack, or does not fit.
        Cost: 2 ns per byte, and up to 15 ms for what is neither binary nor text.
        """
        _check_members(body)
        try:
            members = msgspec.msgpack.decode(body, type=dict[str, Raw])
            n_bytes = sum(len(memoryview(raw)) for raw in members.values() if _first(raw) not in _CHEAP)
            if n_bytes > MAX_VALUE_BYTES:
                raise HTTPException(
                    413,
                    f"{n_bytes} bytes of MessagePack are neither binary nor text, at most {MAX_VALUE_BYTES} may be",
                )
            values = {name: self._value(name, raw) for name, raw in members.items()}
        except (msgspec.DecodeError, UnicodeError, RecursionError, TypeError) as error:
            raise unreadable(error, "MessagePack") from None
        return self._checked(values)

    def _value(self, name: str, raw: Raw) -> object:
        if _first(raw) in _BINARY:
            return self._numbers_of(name, msgspec.msgpack.decode(raw, type=memoryview))
        value = msgspec.msgpack.decode(raw)
        # JSON has neither binary nor times, and its names are texts.
        return value if isinstance(value, str) else msgspec.json.decode(msgspec.json.encode(value))

    def _numbers_of(self, name: str, items: memoryview) -> object:
        code = self._numbers.type_code(name)
        if code is None:
            raise _invalid("a list of integers alone may be binary", "msgpack_binary", name)
        numbers: array[int] = array(code)
        if len(items) % numbers.itemsize:
            raise _invalid(
                f"{len(items)} bytes are not whole integers of {numbers.itemsize} bytes",
                "msgpack_binary",
                name,
            )
        self._check_cost(len(items) // numbers.itemsize)
        numbers.frombytes(items)
        if sys.byteorder != "little":
            numbers.byteswap()
        return numbers or []

    def _check_cost(self, cost: int) -> None:
        if cost > self._max_cost:
            raise HTTPException(
                413,
                f"reading the body costs {cost}, and tokenization.maxReadingCost is {self._max_cost}; ask in parts",
            )

    def _checked(self, values: object) -> ModelT:
        try:
            return self._model.model_validate(values)
        except ValidationError as error:
            errors = error.errors(include_url=False, include_context=False, include_input=False)
            raise RequestValidationError(
                [{**each, "loc": ("body", *each["loc"])} for each in errors]
            ) from None


def _placed(error: UnicodeDecodeError, body: bytes) -> UnicodeDecodeError:
    """Return the error with its place in the whole body; the decoder gives the one in a text."""
    try:
        body.decode()
    except UnicodeDecodeError as placed:
        return placed
    return error


def _check_members(body: bytes | bytearray) -> None:
    """Refuse a map of many members before any is read."""
    first = body[0] if body else 0
    n_members = {0xDE: body[1:3], 0xDF: body[1:5]}.get(first, b"")
    if int.from_bytes(n_members, "big") > MAX_MEMBERS:
        raise HTTPException(413, f"the body has more than {MAX_MEMBERS} members")


def _first(raw: Raw) -> int:
    return memoryview(raw)[0]


def _invalid(message: str, kind: str, *field: str) -> RequestValidationError:
    return RequestValidationError([{"type": kind, "loc": ("body", *field), "msg": message}])
