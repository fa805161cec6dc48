"""Requests past a limit: routed at once without a look at their body, which still arrives unchanged."""

from __future__ import annotations

import pytest

from kvatlas.api.errors import ExtProcError
from kvatlas.api.extproc import ext_proc_pb2 as pb
from kvatlas.api.extproc.answers import MAX_CHUNK_BYTES
from kvatlas.api.extproc.intake import Intake
from kvatlas.routing.outcome import Outcome
from kvatlas.routing.router import Overload, Refusal, RefusalCode
from support.ext_proc import (
    BUFFERED,
    DUPLEX,
    Conversation,
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
    """The intake with as many pending requests as it takes."""
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
    talk = Conversation(ROUTE, intake=full(Intake(max_requests=2)))

    (header,) = talk.say(request_headers(config=DUPLEX))
    assert metadata_destination(header) == "10.0.0.1:8000"
    for message in body:
        chunks = streamed(talk.say(message), "request_body")
        assert b"".join(chunk for chunk, _ in chunks) == message.request_body.body
        assert [end for _, end in chunks][-1:] == [message.request_body.end_of_stream]
    assert [(asked.overload, asked.has_body, asked.body) for asked in talk.asked] == [
        (Overload.PENDING_REQUESTS, True, b"")
    ]


def test_duplex_request_past_the_pending_limit_passes_with_its_trailers() -> None:
    talk = Conversation(ROUTE, intake=full(Intake(max_requests=1)))

    replies = talk.say(
        request_headers(config=DUPLEX), request_body(b"ab"), request_body(), request_trailers()
    )

    assert [kind_of(reply) for reply in replies] == ["request_headers", "request_body", "request_trailers"]
    assert streamed(replies, "request_body") == [(b"ab", False)]


def test_buffered_request_past_the_pending_limit_is_routed_on_its_headers() -> None:
    talk = Conversation(ROUTE, intake=full(Intake(max_requests=1)))

    replies = talk.say(request_headers(config=BUFFERED), request_body(b"ab", end=True))

    assert metadata_destination(replies[0]) == "10.0.0.1:8000"
    assert replies[1] == pb.ProcessingResponse(request_body=pb.BodyResponse())
    assert talk.asked[0].overload is Overload.PENDING_REQUESTS


def test_duplex_request_without_room_goes_on_from_where_it_is() -> None:
    talk = Conversation(ROUTE, intake=Intake(max_bytes=5))

    assert talk.say(request_headers(config=DUPLEX), request_body(b"abc")) == []
    replies = talk.say(request_body(b"def"))
    rest = talk.say(request_body(b"ghi"), request_body(end=True))

    assert metadata_destination(replies[0]) == "10.0.0.1:8000"
    assert streamed(replies, "request_body") == [(b"abcdef", False)]
    assert streamed(rest, "request_body") == [(b"ghi", False), (b"", True)]
    assert (talk.asked[0].overload, talk.asked[0].body) == (Overload.HELD_BYTES, b"")
    assert talk.intake.n_bytes == 0


@both_modes
def test_whole_body_without_room_is_answered_as_ever(config: pb.ProtocolConfiguration) -> None:
    talk = Conversation(ROUTE, intake=Intake(max_bytes=5))
    talk.say(request_headers(config=config))

    replies = talk.say(request_body(b"abcdef", end=True))

    assert metadata_destination(replies[0]) == "10.0.0.1:8000"
    assert streamed(replies[1:], "request_body") == [(b"abcdef", True)] * (config is DUPLEX)
    assert talk.asked[0].overload is Overload.HELD_BYTES
    with pytest.raises(ExtProcError, match="request_body came after the end of the request"):
        talk.say(request_body(b"more"))


@both_modes
def test_room_is_given_back_once_a_request_is_routed(config: pb.ProtocolConfiguration) -> None:
    intake = Intake(max_requests=1, max_bytes=5)

    for _ in range(3):
        talk = Conversation(ROUTE, intake=intake)
        talk.say(request_headers(config=config))
        assert intake.n_requests == 1
        talk.say(request_body(b"abcde", end=True))
        assert (intake.n_requests, intake.n_bytes) == (0, 0)
        assert talk.asked[0].overload is None


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
    talk = Conversation(ROUTE)
    talk.say(*messages)
    assert talk.intake.n_requests == 1

    assert talk.close().outcome is Outcome.ABORTED
    assert (talk.intake.n_requests, talk.intake.n_bytes) == (0, 0)


def test_room_is_given_back_when_a_request_is_refused() -> None:
    talk = Conversation(Refusal(RefusalCode.BAD_REQUEST, "bad"), max_body_bytes=10)
    talk.say(request_headers(config=DUPLEX), request_body(b"{", end=True))
    assert (talk.intake.n_requests, talk.intake.n_bytes) == (0, 0)

    talk = Conversation(ROUTE, max_body_bytes=10)
    talk.say(request_headers(config=DUPLEX), request_body(b"x" * 10), request_body(b"x"))
    assert talk.close().outcome is Outcome.REFUSED
    assert (talk.intake.n_requests, talk.intake.n_bytes) == (0, 0)
