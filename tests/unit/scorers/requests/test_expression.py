"""Expressions over usage: values as the reference's language gives them, and what cannot be read."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.scorers.errors import ExpressionError
from kvatlas.scorers.requests.expression import Expression, Value

USAGE: dict[str, Value] = {
    "usage": {
        "prompt_tokens": 11.0,
        "completion_tokens": 7.0,
        "prompt_tokens_details": {"cached_tokens": 4.0},
    }
}


def value(source: str) -> Value:
    return Expression(source, variables=("usage",)).evaluate(USAGE)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        pytest.param("usage.prompt_tokens + usage.completion_tokens\n", 18.0, id="sum"),
        pytest.param("1 + 2 * 3 - 4", 3, id="precedence"),
        pytest.param("2 * (1 + 2)", 6, id="parentheses"),
        pytest.param("10 / 4", 2, id="whole_quotient"),
        pytest.param("-7 / 2", -3, id="quotient_towards_zero"),
        pytest.param("-7 % 4", -3, id="remainder_of_the_sign"),
        pytest.param("usage.prompt_tokens / 2.0", 5.5, id="quotient"),
        pytest.param("usage.prompt_tokens * 2", 22.0, id="kinds_mix"),
        pytest.param("usage['prompt_tokens']", 11.0, id="index"),
        pytest.param("usage.prompt_tokens_details.cached_tokens", 4.0, id="nested"),
        pytest.param("int(5.9) + int(-5.9)", 0, id="int_towards_zero"),
        pytest.param("double(3)", 3.0, id="double"),
        pytest.param("size(usage) + size('ab')", 5, id="size"),
        pytest.param("has(usage.prompt_tokens) && !has(usage.nothing)", True, id="has"),
        pytest.param("usage.prompt_tokens >= 11 ? 1 : 2", 1, id="choice"),
        pytest.param("false ? 1 : true ? 2 : 3", 2, id="choice_of_choices"),
        pytest.param("usage.nothing > 1 || true", True, id="or_decides_though_the_other_has_none"),
        pytest.param("usage.nothing > 1 && false", False, id="and_decides_though_the_other_has_none"),
        pytest.param("true || usage.nothing", True, id="or_stops"),
        pytest.param("1 == 1.0 && 'a' != 'b' && 1 != true", True, id="equality"),
        pytest.param("!!true", True, id="twice"),
        pytest.param("--3", 3, id="minus_twice"),
        pytest.param("1e3", 1000.0, id="exponent"),
        pytest.param("null", None, id="null"),
    ],
)
def test_expression_has_the_value(source: str, expected: Value) -> None:
    found = value(source)
    assert (found, type(found)) == (expected, type(expected))


@pytest.mark.parametrize(
    "source",
    [
        "usage.nothing", "usage.prompt_tokens.more", "1 / 0", "1.0 / 0.0", "1 % 0", "true + 1", "'a' < 'b'", "1 ? 2 : 3",
        "!1", "usage.nothing || false", "int(1e300 * 1e300)", "size(1)", "usage + 1",
    ],
)  # fmt: skip
def test_expression_without_value_raises(source: str) -> None:
    with pytest.raises(ExpressionError):
        value(source)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        pytest.param("usage.(", r"column 7: found '\(', expected the name of a field", id="no_field"),
        pytest.param("1 +", "column 4: the expression ends, expected a number", id="cut"),
        pytest.param(
            "foo + 1", "column 1: found 'foo', expected a number, a text or one of usage", id="name"
        ),
        pytest.param("1 1", "column 3: found '1', expected an operator or the end", id="two"),
        pytest.param("a ~ b", r"column 3: '~' is not supported", id="sign"),
        pytest.param("[1]", r"column 1: found '\['", id="list"),
        pytest.param("(" * 200 + "1", "nested more than 100 deep", id="deep"),
        pytest.param("true ? 1", "expected ':'", id="half_a_choice"),
    ],
)
def test_expression_that_cannot_be_read_is_refused_with_its_place(source: str, text: str) -> None:
    with pytest.raises(ExpressionError, match=text):
        value(source)


@given(source=st.text("usage.ptx()[]'\"+-*/%<>=!&|?: 0123456789e", max_size=30))
def test_any_text_has_a_value_or_an_error(source: str) -> None:
    with contextlib.suppress(ExpressionError):
        value(source)
