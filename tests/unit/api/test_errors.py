"""The table of status codes."""

from __future__ import annotations

import grpc
import pytest

from kvatlas.api.errors import refusal_text, status_of
from kvatlas.routing.router import Refusal, RefusalCode


@pytest.mark.parametrize(
    ("code", "http", "status"),
    [
        pytest.param(RefusalCode.BAD_REQUEST, 400, grpc.StatusCode.INVALID_ARGUMENT, id="bad_request"),
        pytest.param(RefusalCode.PRECONDITION_FAILED, 412, grpc.StatusCode.FAILED_PRECONDITION, id="failed"),
        pytest.param(RefusalCode.PAYLOAD_TOO_LARGE, 413, grpc.StatusCode.RESOURCE_EXHAUSTED, id="too_large"),
        pytest.param(RefusalCode.RESOURCE_EXHAUSTED, 429, grpc.StatusCode.RESOURCE_EXHAUSTED, id="exhausted"),
        pytest.param(RefusalCode.INTERNAL, 500, grpc.StatusCode.INTERNAL, id="internal"),
        pytest.param(RefusalCode.SERVICE_UNAVAILABLE, 503, grpc.StatusCode.UNAVAILABLE, id="unavailable"),
    ],
)
def test_refusal_code_has_its_status_in_each_protocol(
    code: RefusalCode, http: int, status: grpc.StatusCode
) -> None:
    assert status_of(code) == (http, status)


def test_every_refusal_code_has_a_status() -> None:
    for code in RefusalCode:
        status_of(code)


def test_refusal_reads_as_endpoint_pickers_write_it() -> None:
    assert (
        refusal_text(Refusal(RefusalCode.BAD_REQUEST, "no model")) == "inference error: BadRequest - no model"
    )
