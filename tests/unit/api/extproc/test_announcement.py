"""Streams of the responses API: what engines send before they compute is no first token."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.api.extproc import ext_proc_pb2 as pb
from kvatlas.api.extproc.announcement import Announcement, announces
from kvatlas.routing.outcome import Outcome, Usage
from support.ext_proc import (
    DUPLEX,
    MachineDriver,
    header_map,
    make_route,
    request_body,
    response_body,
    response_headers,
    streamed,
)


def event(kind: str, data: bytes = b"{}") -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n"


EARLY = event("response.created", b'{"response": {"usage": null}}') + event("response.in_progress")
TOKEN = event("response.output_item.added") + event("response.output_text.delta")
END = event("response.completed", b'{"response": {"usage": {"input_tokens": 9, "output_tokens": 4}}}')
SSE = ("content-type", "text/event-stream")


def driver_of(path: str = "/v1/responses") -> MachineDriver:
    """Return a stream whose request was routed at 0 s."""
    driver = MachineDriver(make_route("10.0.0.1:8000"))
    headers = header_map([(":path", path), ("x-request-id", "id")])
    first = pb.ProcessingRequest(request_headers=pb.HttpHeaders(headers=headers), protocol_config=DUPLEX)
    driver.send(first, request_body(b"{}", end=True))
    return driver


@pytest.mark.parametrize(
    ("path", "content_type", "first_byte_at"),
    [
        pytest.param("/v1/responses", SSE[1], 5.0, id="responses"),
        pytest.param("/v1/responses/?a=/b", SSE[1], 5.0, id="with_query"),
        pytest.param("/v1/chat/completions", SSE[1], 1.0, id="chat"),
        pytest.param("/v1/responses", "application/json", 1.0, id="unstreamed"),
    ],
)
def test_first_token_comes_after_the_announcement(path: str, content_type: str, first_byte_at: float) -> None:
    driver = driver_of(path)
    driver.send(response_headers(("content-type", content_type)))
    pieces = [(1.0, EARLY[:40]), (2.0, EARLY[40:]), (4.0, b": still at it\n\n"), (5.0, TOKEN), (9.0, END)]
    for driver.now, piece in pieces:
        driver.send(response_body(piece))
        assert len(driver.begun) == (driver.now >= first_byte_at)
    driver.send(response_body(end=True))

    body = b"".join(data for data, _ in streamed(driver.replies, "response_body"))
    response = driver.close().response
    assert (body, response.time_to_first_byte_s) == (b"".join(data for _, data in pieces), first_byte_at)
    if content_type == SSE[1]:
        assert response.usage == Usage(9, None, 4)
        assert driver.begun[0].is_first_token


@pytest.mark.parametrize(
    ("headers", "body", "is_passed"),
    [
        pytest.param([SSE], EARLY, False, id="nothing_yet"),
        pytest.param([SSE], EARLY + TOKEN, True, id="first_token"),
        pytest.param([SSE, ("content-encoding", "gzip")], b"\x1f\x8b", True, id="compressed"),
    ],
)
def test_rest_may_pass_once_the_first_token_has_come(
    headers: list[tuple[str, str]], body: bytes, is_passed: bool
) -> None:
    pytest.importorskip("kvatlas.api.http2._native", reason="built without a compiler")
    driver = driver_of()
    driver.send(response_headers(*headers), response_body(body))

    assert (driver.machine.passage() is not None) is is_passed


def test_response_that_ends_before_a_token_has_none() -> None:
    driver = driver_of()
    driver.send(response_headers(SSE), response_body(EARLY, end=True))

    completion = driver.close()
    assert (completion.outcome, completion.response.time_to_first_byte_s) == (Outcome.COMPLETED, None)
    assert driver.begun == []


@given(st.lists(st.integers(0, len(EARLY + TOKEN)), max_size=8))
def test_it_is_over_at_the_same_event_however_it_is_cut(cuts: list[int]) -> None:
    body = EARLY + TOKEN
    places = [0, *sorted(cuts), len(body)]
    found = Announcement(has_events=True)
    seen = 0
    for start, end in pairwise(places):
        seen = end
        if found.is_over(body[start:end]):
            break
    after = len(EARLY) + len(b"event: response.output_item.added\n")
    assert seen == min(place for place in places if place >= after)


@given(st.lists(st.binary(max_size=30), max_size=5))
def test_any_body_is_survived(pieces: list[bytes]) -> None:
    found = Announcement(has_events=True)
    assert all(found.is_over(each) in (True, False) for each in pieces)


def test_events_without_names_and_long_pieces_are_taken_for_tokens() -> None:
    assert Announcement(has_events=True).is_over(b'data: {"type": "response.created"}\n')
    assert Announcement(has_events=True).is_over(bytes(300_000))
    assert not Announcement(has_events=True).is_over(b"event: response.created\ndata: " + bytes(200_000))


def test_other_paths_announce_nothing() -> None:
    assert announces("/openai/v1/responses")
    assert not announces("/v1/responses/resp_1/cancel")
    assert not announces("/v1/completions?from=/responses")
