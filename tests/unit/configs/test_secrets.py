"""Masking of secrets."""

from __future__ import annotations

import pytest

from kvatlas.configs.secrets import masked, masked_message


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        pytest.param("http://me:secret@host:1/m", "http://***@host:1/m", id="url"),
        pytest.param("http://h/m?key=a/b@c&x=1#f", "http://h/m?key=***&x=***#f", id="query"),
        pytest.param(
            "found 'http://u@h/?k=1', 'x?y=z'", "found 'http://***@h/?k=***', 'x?y=z'", id="message"
        ),
        pytest.param("redis://:p@ss@host", "redis://***@host", id="at_in_a_password"),
        pytest.param("http://host/a@b", "http://host/a@b", id="at_in_a_path"),
        pytest.param("kv@host@model", "kv@host@model", id="no_url"),
        pytest.param({"password": "x", "user": "y"}, {"password": "***", "user": "y"}, id="key"),
        pytest.param(
            {"dbPassword": "x", "clientSecret": "x", "apiKey": "x", "token": "x"},
            dict.fromkeys(("dbPassword", "clientSecret", "apiKey", "token"), "***"),
            id="keys",
        ),
        pytest.param(
            {"tokenizer": "/x", "bearerTokenFile": "/x", "keyFile": "/x", "password": ""},
            {"tokenizer": "/x", "bearerTokenFile": "/x", "keyFile": "/x", "password": ""},
            id="harmless_keys",
        ),
        pytest.param([{"a": ("http://u@h",)}, 1, None], [{"a": ["http://***@h"]}, 1, None], id="nested"),
    ],
)
def test_secrets_are_masked_and_nothing_else(data: object, shown: object) -> None:
    assert masked(data) == shown


def test_password_of_a_broken_url_is_masked_in_a_message() -> None:
    message = "found 'http://me:pa/ss?w#d@host/metrics', expected a URL"
    assert masked_message(message) == "found 'http://***@host/metrics', expected a URL"
