from __future__ import annotations

import pytest

from kvatlas.tokenization.requests.output_limit import output_limit


@pytest.mark.parametrize(
    ("body", "limit"),
    [
        pytest.param(b'{"max_tokens": 5}', 5, id="completion"),
        pytest.param(b'{"max_completion_tokens": 7, "max_tokens": 5}', 7, id="chat"),
        pytest.param(b'{"max_output_tokens": 9}', 9, id="response"),
        pytest.param(b'{"max_tokens": null}', None, id="null"),
        pytest.param(b'{"max_tokens": -1}', None, id="negative"),
        pytest.param(b'{"max_tokens": "many"}', None, id="wrong_type"),
        pytest.param(b"{}", None, id="absent"),
        pytest.param(b"{", None, id="no_json"),
    ],
)
def test_limit_of_output_tokens_is_read_from_the_body(body: bytes, limit: int | None) -> None:
    assert output_limit(body) == limit
