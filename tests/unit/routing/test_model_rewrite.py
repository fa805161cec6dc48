"""Another model in a request's body."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.configs.section import MAX_NAME_CHARS
from kvatlas.routing.model_rewrite import rewritten

NAMES = st.text(min_size=1, max_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@pytest.mark.parametrize(
    ("body", "expected", "asked_for"),
    [
        pytest.param(b'{"model":"q","n":1.50}', b'{"model":"t","n":1.50}', "q", id="R15_replaced"),
        pytest.param(b'{"n":1}', b'{"n":1,"model":"t"}', "", id="R11_added"),
        pytest.param(
            b'{ "a" : [1, 2.5e3, {"b" :"\\u00e9"}] , "model":"q" }',
            b'{"a":[1, 2.5e3, {"b" :"\\u00e9"}],"model":"t"}',
            "q",
            id="other_values_keep_their_bytes",
        ),
        pytest.param(b'{"model":"a","model":"b"}', b'{"model":"t"}', "b", id="repeated"),
    ],
)
def test_model_is_replaced(body: bytes, expected: bytes, asked_for: str) -> None:
    rewrite = rewritten(body, "t")

    assert rewrite is not None
    assert (rewrite.body, rewrite.asked_for, rewrite.target) == (expected, asked_for, "t")


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"[1]", id="list"),
        pytest.param(b'{"model":', id="broken"),
        pytest.param(b'{"model":3}', id="model_is_no_text"),
        pytest.param(b'{"model":"\xff"}', id="not_utf8"),
        pytest.param(b'{"a":' + b"[" * 100_000, id="nested_too_deeply"),
    ],
)
def test_what_is_no_request_is_left_to_the_parser(body: bytes) -> None:
    assert rewritten(body, "t") is None


def test_body_stays_as_it_is_when_it_names_the_target() -> None:
    assert rewritten(b'{ "model": "t", "model": "t" }', "t") is None


@given(st.dictionaries(st.text(), VALUES), NAMES)
def test_all_but_the_model_stays(members: dict[str, object], target: str) -> None:
    members.pop("model", None)
    rewrite = rewritten(json.dumps(members | {"model": "q"}).encode(), target)

    assert rewrite is not None
    assert json.loads(rewrite.body) == members | {"model": target}


def test_name_that_is_too_long_is_not_written_into_responses() -> None:
    body = json.dumps({"model": "q" * (MAX_NAME_CHARS + 1)}).encode()

    rewrite = rewritten(body, "t")

    assert rewrite is not None
    assert (rewrite.body, rewrite.asked_for) == (b'{"model":"t"}', "")
