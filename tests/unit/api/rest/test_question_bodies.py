"""Bodies of questions that are no JSON: the error has the reason and the place."""

from __future__ import annotations

import pytest
from fastapi.exceptions import RequestValidationError

from kvatlas.api.rest.models import QueryRequest
from kvatlas.api.rest.question_bodies import QuestionBodies


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        pytest.param(b"{", "not JSON: Input data was truncated", id="cut_off"),
        pytest.param(b'{"model" 1}', "not JSON: expected ':' (byte 9)", id="colon"),
        pytest.param(b'{"model":"\xff"}', "not UTF-8: invalid start byte (byte 10)", id="not_utf_8"),
        pytest.param(b"[" * 5000 + b"]" * 5000, "not JSON that can be read: nested too deeply", id="nested"),
    ],
)
def test_body_that_is_no_json_is_refused_with_the_reason(body: bytes, problem: str) -> None:
    with pytest.raises(RequestValidationError) as raised:
        QuestionBodies(QueryRequest, max_cost=400_000).decoded(body)

    (error,) = raised.value.errors()
    assert (error["loc"], error["msg"]) == (("body",), problem)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        pytest.param(b"\x81", "not MessagePack: Input data was truncated", id="cut_off"),
        pytest.param(b"\xc1", "not MessagePack: invalid opcode '\\xc1' (byte 0)", id="opcode"),
        pytest.param(b"\x81\xa1a\x01\x00", "not MessagePack: trailing characters (byte 4)", id="more"),
        pytest.param(b"\x91\x01", "not MessagePack: Expected `object`, got `array`", id="list"),
        pytest.param(
            b"\x81\xa1a\xa1\xff", "not UTF-8: invalid start byte (byte 0 of a text)", id="not_utf_8"
        ),
        pytest.param(
            b"\x81\xa1a" + b"\x91" * 5000, "not MessagePack that can be read: nested too deeply", id="nested"
        ),
    ],
)
def test_body_that_is_no_messagepack_is_refused_with_the_reason(body: bytes, problem: str) -> None:
    with pytest.raises(RequestValidationError) as raised:
        QuestionBodies(QueryRequest, max_cost=400_000).unpacked(body)

    (error,) = raised.value.errors()
    assert (error["type"], error["loc"], error["msg"]) == ("msgpack_invalid", ("body",), problem)
