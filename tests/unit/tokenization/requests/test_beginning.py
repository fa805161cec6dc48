"""The model in the beginning of a body."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.configs.section import MAX_NAME_CHARS
from kvatlas.tokenization.requests.beginning import MAX_PIECES, model_of_beginning

CHAT = json.dumps(
    {"messages": [{"role": "user", "model": "no", "content": 'a "model": "no"}'}], "model": "q é"}
)


@pytest.mark.parametrize(
    ("beginning", "model"),
    [
        pytest.param(CHAT.encode(), "q é", id="whole"),
        pytest.param(CHAT.encode()[:-1], "q é", id="without_its_end"),
        pytest.param(CHAT.encode()[:-2], "", id="amid_the_name"),
        pytest.param(b'{"messages":[{"model":"no"', "", id="of_a_message"),
        pytest.param(b'{"a":"model","model" : "m",', "m", id="text_and_blanks"),
        pytest.param(b'{"model":', "", id="before_the_name"),
        pytest.param(b'{"model":3,"a":"b"', "", id="number"),
        pytest.param(b'{"model":null', "", id="null"),
        pytest.param(b'{"model":"\xff"', "", id="not_utf8"),
        pytest.param(b'{"model":"\\x"', "", id="bad_escape"),
        pytest.param(b'{"model":"%b"' % (b"m" * MAX_NAME_CHARS), "m" * MAX_NAME_CHARS, id="long_name"),
        pytest.param(b'{"model":"%b"' % (b"m" * (MAX_NAME_CHARS + 1)), "", id="too_long_name"),
        pytest.param(b"[" * MAX_PIECES + b"]" * MAX_PIECES + b'{"model":"m"', "", id="too_many_pieces"),
        pytest.param(b"", "", id="nothing"),
        pytest.param(b'"model":"m"', "", id="no_object"),
    ],
)
def test_model_is_found_in_the_object_itself(beginning: bytes, model: str) -> None:
    assert model_of_beginning(beginning) == model


@given(st.dictionaries(st.text(max_size=5) | st.just("model"), st.text() | st.lists(st.text()), max_size=4))
def test_model_is_that_of_the_whole_body(body: dict[str, str | list[str]]) -> None:
    model = body.get("model", "")

    assert model_of_beginning(json.dumps(body).encode()) == (model if isinstance(model, str) else "")
