"""Masking of secrets."""

from __future__ import annotations

import pytest

from kvatlas.configs.secrets import masked


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        pytest.param("http://me:secret@host:1/m?x=1", "http://***@host:1/m?x=1", id="url"),
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
