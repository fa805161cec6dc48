"""Requests past a limit: routed at once without a look at their body, which still arrives unchanged."""

from __future__ import annotations

import pytest

from kvatlas.api.errors import ExtProcError
from kvatlas.api.extproc import ext_proc_pb2 as pb
from kvatlas.api.extproc.intake import SLOW_SECONDS, Intake
from kvatlas.api.extproc.messages import MAX_HEADERS
from kvatlas.api.extproc.replies import MAX_CHUNK_BYTES
from kvatlas.routing.outcome import Outcome
from kvatlas.routing.router import ModelRewrite, Overload, Refusal, RefusalCode
from support.ext_proc import (
    BUFFERED,
    DUPLEX,
    MachineDriver,
    kind_of,
    make_route,
    metadata_destination,
    request_body,
    request_headers,
    request_trailers,
    response_headers,
    streamed,
)

ROUTE = make_route("10.0.0.1:8000")
both_modes = pytest.mark.parametrize(
    "config", [pytest.param(DUPLEX, id="duplex"), pytest.param(BUFFERED, id="buffered")]
)


def full(intake: Intake) -> Intake:
    """Fill the intake with pending requests."""
    while intake.share().admit():
        pass
    return intake


@pytest.mark.parametrize(
    "body",
    [
        pytest.param([request_body(b"ab", end=True)], id="one_chunk"),
        pytest.param([request_body(b"ab"), request_body(b"cd", end=True)], id="two_chunks"),
        pytest.param([request_body(b"ab"), request_body(end=True)], id="empty_end"),
        pytest.param([request_body(b"x" * (MAX_CHUNK_BYTES + 1), end=True)], id="more_than_an_answer_holds"),
    ],
)
def test_duplex_request_past_the_pending_limit_passes_as_it_comes(body: list[pb.ProcessingRequest]) -> None:
    driver = MachineDriver(ROUTE, intake=full(Intake(max_requests=2)))

    assert driver.send(request_headers(config=DUPLEX)) == []
    for message in body:
        replies = driver.send(message)
        if message is body[0]:
            assert metadata_destination(replies[0]) == "10.0.0.1:8000"
        chunks = streamed(replies, "request_body")
        assert b"".join(chunk for chunk, _ in chunks) == message.request_body.body
        assert [end for _, end in chunks][-1:] == [message.request_body.end_of_stream]
    assert [(asked.overload, asked.has_body, asked.body) for asked in driver.requests] == [
        (Overload.PENDING_REQUESTS, True, body[0].request_body.body)
    ]


def test_duplex_request_past_the_pending_limit_passes_with_its_trailers() -> None:
    driver = MachineDriver(ROUTE, intake=full(Intake(max_requests=1)))

    replies = driver.send(
        request_headers(config=DUPLEX), request_body(b"ab"), request_body(), request_trailers()
    )

    assert [kind_of(reply) for reply in replies] == ["request_headers", "request_body", "request_trailers"]
    assert streamed(replies, "request_body") == [(b"ab", False)]


def test_buffered_request_past_the_pending_limit_is_routed_without_prefix() -> None:
    driver = MachineDriver(ROUTE, intake=full(Intake(max_requests=1)))

    replies = driver.send(request_headers(config=BUFFERED), request_body(b"ab", end=True))

    assert kind_of(replies[0]) == "request_headers"
    assert metadata_destination(replies[1]) == "10.0.0.1:8000"
    assert (driver.requests[0].overload, driver.requests[0].body) == (Overload.PENDING_REQUESTS, b"ab")


def test_duplex_request_without_room_goes_on_from_where_it_is() -> None:
    driver = MachineDriver(ROUTE, intake=Intake(max_bytes=5))

    assert driver.send(request_headers(config=DUPLEX), request_body(b"abc")) == []
    replies = driver.send(request_body(b"def"))
    rest = driver.send(request_body(b"ghi"), request_body(end=True))

    assert metadata_destination(replies[0]) == "10.0.0.1:8000"
    assert streamed(replies, "request_body") == [(b"abcdef", False)]
    assert streamed(rest, "request_body") == [(b"ghi", False), (b"", True)]
    assert (driver.requests[0].overload, driver.requests[0].body) == (Overload.HELD_BYTES, b"abcdef")
    assert driver.intake.n_bytes == 0


@both_modes
def test_whole_body_without_room_is_answered_as_ever(config: pb.ProtocolConfiguration) -> None:
    driver = MachineDriver(ROUTE, intake=Intake(max_bytes=5))
    driver.send(request_headers(config=config))

    replies = driver.send(request_body(b"abcdef", end=True))

    assert metadata_destination(replies[0]) == "10.0.0.1:8000"
    assert streamed(replies[1:], "request_body") == [(b"abcdef", True)] * (config is DUPLEX)
    assert driver.requests[0].overload is Overload.HELD_BYTES
    with pytest.raises(ExtProcError, match="request_body came after the end of the request"):
        driver.send(request_body(b"more"))


@both_modes
def test_room_is_given_back_once_a_request_is_routed(config: pb.ProtocolConfiguration) -> None:
    intake = Intake(max_requests=1, max_bytes=5)

    for _ in range(3):
        driver = MachineDriver(ROUTE, intake=intake)
        driver.send(request_headers(config=config))
        assert intake.n_requests == (
            config is DUPLEX
        )  # otherwise the gateway holds the body until it is whole
        driver.send(request_body(b"abcde", end=True))
        assert (intake.n_requests, intake.n_bytes) == (0, 0)
        assert driver.requests[0].overload is None


@pytest.mark.parametrize(
    "messages",
    [
        pytest.param([request_headers(config=DUPLEX)], id="after_headers"),
        pytest.param([request_headers(config=DUPLEX), request_body(b"abc")], id="amid_the_body"),
        pytest.param(
            [request_headers(config=DUPLEX), request_body(b"abc"), response_headers()], id="answered_early"
        ),
    ],
)
def test_room_is_given_back_when_the_client_goes_away(messages: list[pb.ProcessingRequest]) -> None:
    driver = MachineDriver(ROUTE)
    driver.send(*messages)
    assert driver.intake.n_requests == 1

    assert driver.close().outcome is Outcome.ABORTED
    assert (driver.intake.n_requests, driver.intake.n_bytes) == (0, 0)


def test_room_is_given_back_when_a_request_is_refused() -> None:
    driver = MachineDriver(Refusal(RefusalCode.BAD_REQUEST, "bad"), max_body_bytes=10)
    driver.send(request_headers(config=DUPLEX), request_body(b"{", end=True))
    assert (driver.intake.n_requests, driver.intake.n_bytes) == (0, 0)

    driver = MachineDriver(ROUTE, max_body_bytes=10)
    driver.send(request_headers(config=DUPLEX), request_body(b"x" * 10), request_body(b"x"))
    assert driver.close().outcome is Outcome.REFUSED
    assert (driver.intake.n_requests, driver.intake.n_bytes) == (0, 0)


@pytest.mark.parametrize(
    "begun",
    [
        pytest.param([request_headers(config=DUPLEX)], id="headers_alone"),
        pytest.param([request_headers(config=DUPLEX), request_body(b"abc")], id="amid_the_body"),
    ],
)
def test_upload_past_the_time_limit_goes_on_without_prefix(begun: list[pb.ProcessingRequest]) -> None:
    intake = Intake(max_seconds=30)
    driver = MachineDriver(ROUTE, intake=intake)
    driver.send(*begun)

    assert not intake.expire(29.9)
    assert driver.revoked == []
    intake.expire(30.0)
    replies = driver.carry_out_revocation()
    replies += driver.send(request_body(b"def", end=True))

    assert metadata_destination(replies[0]) == "10.0.0.1:8000"
    assert b"".join(chunk for chunk, _ in streamed(replies, "request_body")) == b"abcdef"[-3 * len(begun) :]
    assert driver.requests[0].overload is Overload.UPLOAD_TIME
    assert (intake.n_requests, intake.n_bytes) == (0, 0)


LARGE_HEADER = ("x-large", "x" * 10_000)


def test_large_headers_of_a_body_that_never_comes_are_dropped_when_others_need_the_room() -> None:
    intake = Intake(max_bytes=25_000)
    driver = MachineDriver(ROUTE, intake=intake)
    driver.send(request_headers(LARGE_HEADER, ("x-session-id", "s"), config=BUFFERED))
    assert intake.n_bytes > 10_000
    intake.expire(SLOW_SECONDS)

    assert not intake.hold(20_000)
    assert driver.carry_out_revocation() == []
    assert intake.hold(20_000)
    (reply,) = driver.send(request_body(b"{}", end=True))

    assert metadata_destination(reply) == "10.0.0.1:8000"
    assert driver.requests[0].overload is Overload.HELD_BYTES
    assert driver.requests[0].headers.keys() == {":path", "x-request-id"}


@both_modes
def test_large_headers_without_room_cost_the_request_its_prefix_alone(
    config: pb.ProtocolConfiguration,
) -> None:
    driver = MachineDriver(ROUTE, intake=Intake(max_bytes=100))

    driver.send(request_headers(LARGE_HEADER, config=config), request_body(b"{}", end=True))

    assert driver.requests[0].overload is Overload.HELD_BYTES
    assert metadata_destination(driver.replies[config is BUFFERED]) == "10.0.0.1:8000"
    assert (driver.intake.n_requests, driver.intake.n_bytes) == (0, 0)


def test_more_headers_than_are_read_are_refused() -> None:
    driver = MachineDriver(ROUTE)

    (reply,) = driver.send(request_headers(*[("x", "y")] * (MAX_HEADERS + 1), config=DUPLEX))

    assert reply.immediate_response.status.code == 431
    assert driver.close().outcome is Outcome.REFUSED


def test_new_body_is_not_kept_during_the_response() -> None:
    route = make_route("10.0.0.1:8000", rewrite=ModelRewrite(b"new", "asked", "target"))
    driver = MachineDriver(route)

    replies = driver.send(request_headers(config=DUPLEX), request_body(b"old", end=True))

    assert streamed(replies, "request_body") == [(b"new", True)]
    kept = driver.close().route
    assert kept is not None
    assert kept.rewrite == ModelRewrite(b"", "asked", "target")
