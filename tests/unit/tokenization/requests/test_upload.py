"""The model in an upload in parts."""

from __future__ import annotations

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.configs.section import MAX_NAME_CHARS
from kvatlas.tokenization.requests.beginning import model_of_beginning
from kvatlas.tokenization.requests.request import parse_body
from kvatlas.tokenization.requests.upload import MAX_EDGE_BYTES, MAX_PARTS, model_of_upload

PATH = "/v1/audio/transcriptions"
LONG = bytes(range(256)) * 1024


def form(*fields: tuple[str, bytes], boundary: str = "b--1") -> bytes:
    """Return an upload; a field called `file` has a file's headers."""
    file = b'; filename="a.wav"\r\nContent-Type: audio/wav'
    parts = [
        b'--%b\r\nContent-Disposition: form-data; name="%b"%b\r\n\r\n%b\r\n'
        % (boundary.encode(), name.encode(), file if name == "file" else b"", content)
        for name, content in fields
    ]
    return b"".join(parts) + b"--%b--\r\n" % boundary.encode()


@pytest.mark.parametrize(
    ("body", "model"),
    [
        pytest.param(form(("model", b"whisper"), ("file", LONG)), "whisper", id="before_the_file"),
        pytest.param(
            form(("file", LONG), ("language", b"en"), ("model", b"whisper")), "whisper", id="after_it"
        ),
        pytest.param(form(("model", "wh\u00e9".encode())), "wh\u00e9", id="utf8"),
        pytest.param(form(("model", b"m")).replace(b'"model"', b"model"), "m", id="not_quoted"),
        pytest.param(form(("model", b"m")).replace(b"Content-Dis", b"content-dis"), "m", id="other_case"),
        pytest.param(
            form(("model", b"m")).replace(b"\r\n\r\n", b"\r\nContent-Type: text/plain\r\n\r\n"),
            "m",
            id="with_type",
        ),
        pytest.param(
            form(("file", b'; name="model"\r\n\r\nno\r\n'), ("model", b"yes")), "yes", id="in_the_file"
        ),
        pytest.param(form(("models", b"no"), ("model_id", b"no")), "", id="other_names"),
        pytest.param(form(("file", LONG)), "", id="no_field"),
        pytest.param(form(("model", b"\xff")), "", id="not_utf8"),
        pytest.param(form(("model", b"m" * MAX_NAME_CHARS)), "m" * MAX_NAME_CHARS, id="long"),
        pytest.param(form(("model", b"m" * (MAX_NAME_CHARS + 1))), "", id="too_long"),
        pytest.param(form(("file", LONG), ("model", b"m"), ("file", LONG)), "", id="between_files"),
        pytest.param(form(*[("a", b"")] * MAX_PARTS, ("model", b"m")), "", id="too_many_parts"),
        pytest.param(form(("model", b"m"), boundary="b" * 71), "", id="too_long_boundary"),
        pytest.param(b"--", "", id="nothing_more"),
        pytest.param(b"--\r\n\r\n", "", id="no_boundary"),
    ],
)
def test_model_of_an_upload_is_found_at_its_ends(body: bytes, model: str) -> None:
    assert model_of_upload(body) == model
    assert parse_body(PATH, body).model == model


def test_model_is_found_in_the_beginning_of_an_upload() -> None:
    body = form(("model", b"whisper"), ("file", LONG))

    assert model_of_beginning(body[: MAX_EDGE_BYTES // 2]) == "whisper"
    assert model_of_beginning(body[: body.index(b"per\r\n") + 3]) == "", "it may go on"


async def test_model_is_found_in_an_upload_as_a_client_writes_it() -> None:
    data = aiohttp.FormData()
    data.add_field("file", LONG, filename="a.wav")
    data.add_field("model", "whisper")
    written = data()
    assert isinstance(written, aiohttp.MultipartWriter)

    assert model_of_upload(await written.as_bytes()) == "whisper"


@given(st.binary(max_size=300))
def test_any_upload_is_survived(data: bytes) -> None:
    for body in (b"--" + data, b"--b\r\n" + data, form(("model", b"m"))[:-1] + data):
        assert isinstance(model_of_upload(body), str)
