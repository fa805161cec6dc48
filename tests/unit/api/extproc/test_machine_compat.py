"""What the reference picker does differently; the ids are the numbers of the protocol cases."""

from __future__ import annotations

import pytest
from google.protobuf.struct_pb2 import Value

from kvatlas.api.extproc import ext_proc_pb2 as pb
from kvatlas.api.extproc.dialect import LlmD
from kvatlas.api.extproc.intake import Intake
from kvatlas.api.extproc.messages import read_message
from kvatlas.api.extproc.replies import MAX_AT_ONCE_BYTES, LongReply
from kvatlas.routing.control_headers import CONTROL_HEADERS
from kvatlas.routing.router import ModelRewrite, Refusal, RefusalCode, Route
from support.ext_proc import (
    BUFFERED,
    DUPLEX,
    MachineDriver,
    make_route,
    request_body,
    request_headers,
    response_body,
    response_headers,
    response_trailers,
    set_headers,
    streamed,
    subset_hint,
)

ROUTE = make_route("10.0.0.1:8000")
BODY = b'{"model":"m","prompt":"p"}'
CHAT = {":method": "POST", ":path": "/v1/chat/completions", "content-type": "application/json"}
REQUEST = (request_headers(config=DUPLEX), request_body(BODY, end=True))


def llm_d_driver(answer: Route | Refusal = ROUTE, intake: Intake | None = None) -> MachineDriver:
    return MachineDriver(answer, dialect=LlmD(), intake=intake)


@pytest.mark.parametrize("config", [pytest.param(DUPLEX, id="duplex"), pytest.param(BUFFERED, id="buffered")])
def test_headers_of_a_request_are_set_again(config: pb.ProtocolConfiguration) -> None:
    driver = llm_d_driver()
    sent = [*dict.fromkeys(CONTROL_HEADERS, "x").items(), ("content-length", "999"), ("x-empty", "")]

    driver.send(request_headers(("X-User", "u"), *sent, config=config), request_body(BODY, end=True))

    answer = next(reply for reply in driver.replies if reply.HasField("dynamic_metadata"))
    assert set_headers(answer) == CHAT | {  # R2
        "x-gateway-destination-endpoint": "10.0.0.1:8000",
        "Content-Length": str(len(BODY)),
        "x-user": "u",
        "x-request-id": "id-1",
    }


def test_bytes_of_a_header_are_set_again_as_they_were() -> None:
    driver = llm_d_driver()
    headers = pb.HeaderMap(
        headers=[
            pb.HeaderValue(key="x-raw", raw_value=b"\xff"),
            pb.HeaderValue(key="x-text", value="t"),
            pb.HeaderValue(key="x-twice", raw_value=b"1"),
            pb.HeaderValue(key="x-twice", raw_value=b"2"),
        ]
    )

    driver.send(
        pb.ProcessingRequest(request_headers=pb.HttpHeaders(headers=headers)), request_body(BODY, end=True)
    )

    mutation = driver.replies[0].request_headers.response.header_mutation
    told = {option.header.key: option.header.raw_value for option in mutation.set_headers}
    assert (told["x-raw"], told["x-text"]) == (b"\xff", b"t")
    assert "x-twice" not in told  # set, it would come once


def test_length_of_a_rewritten_body_is_set_once() -> None:
    rewrite = ModelRewrite(b'{"model":"t"}', "m", "t")
    driver = llm_d_driver(make_route("10.0.0.1:8000", rewrite=rewrite))

    driver.send(*REQUEST)

    told = set_headers(driver.replies[0])
    assert [value for name, value in told.items() if name.lower() == "content-length"] == ["13"]


def test_request_without_body_gets_the_destination_alone() -> None:
    driver = llm_d_driver()

    (answer,) = driver.send(request_headers(config=DUPLEX, end=True))

    assert set_headers(answer) == {"x-gateway-destination-endpoint": "10.0.0.1:8000"}  # R8


def test_no_endpoint_is_an_internal_error_without_a_body_and_503_with_one() -> None:
    refusal = Refusal(RefusalCode.SERVICE_UNAVAILABLE, "none", dropped_reason="rejected-no-endpoints")
    bare, full = llm_d_driver(refusal), llm_d_driver(refusal)

    bare.send(request_headers(config=DUPLEX, end=True))
    full.send(*REQUEST)

    answer = bare.replies[0].immediate_response
    assert (answer.status.code, answer.body) == (
        500,
        b"inference error: Internal - no pods available in datastore",
    )  # R9
    assert not answer.HasField("headers")
    assert full.replies[0].immediate_response.status.code == 503


@pytest.mark.parametrize(
    ("value", "subset"),
    [
        pytest.param(["10.0.0.1:8000", " 10.0.0.2:1 "], {"10.0.0.1", "10.0.0.2"}, id="S7_ip_alone_counts"),
        pytest.param(["10.0.0.1"], {"10.0.0.1"}, id="S7_ip"),
        pytest.param(["[::1]:80", "[::2]", "::3"], {"[::1]", "[::2]", "::3"}, id="S7_ipv6"),
        pytest.param([], set[str](), id="S4_empty"),
        pytest.param(Value(string_value="10.0.0.1:8000"), None, id="S6_string_is_ignored"),
    ],
)
def test_subset_is_a_list_of_ips(value: Value | list[str], subset: set[str] | None) -> None:
    driver = llm_d_driver()

    driver.send(request_headers(config=DUPLEX, end=True, metadata=subset_hint(value)))

    assert driver.requests[0].subset == subset


def test_no_subset_is_none() -> None:
    driver = llm_d_driver()

    driver.send(request_headers(config=DUPLEX, end=True, metadata=pb.Metadata()))

    assert driver.requests[0].subset is None


def test_headers_of_a_response_are_set_again_with_a_mark() -> None:
    driver = llm_d_driver()
    driver.send(*REQUEST)

    (answer,) = driver.send(response_headers(("content-length", "2"), ("x-engine", "vllm")))

    assert set_headers(answer) == {
        "x-went-into-resp-headers": "true",
        ":status": "200",
        "x-engine": "vllm",
    }  # P1


@pytest.mark.parametrize("kind", ["application/json", "text/html", ""])
def test_response_is_given_back_whole_at_its_end(kind: str) -> None:
    driver = llm_d_driver()
    driver.send(*REQUEST, response_headers(("content-type", kind)))

    assert driver.send(response_body(b"ab"), response_body(b"cd")) == []
    assert streamed(driver.send(response_body(end=True)), "response_body") == [(b"abcd", True)]  # P2, P3


def test_response_with_trailers_is_given_back_before_them() -> None:
    driver = llm_d_driver()
    driver.send(*REQUEST, response_headers(("content-type", "application/json")), response_body(b"ab"))

    replies = driver.send(response_trailers())

    assert streamed(replies[:1], "response_body") == [(b"ab", False)]  # P10
    assert replies[1] == pb.ProcessingResponse(response_trailers=pb.TrailersResponse())


def test_events_are_given_back_as_they_come() -> None:
    driver = llm_d_driver()
    driver.send(*REQUEST, response_headers(("content-type", "text/event-stream; charset=utf-8")))

    assert streamed(driver.send(response_body(b"data: 1\n\n")), "response_body") == [
        (b"data: 1\n\n", False)
    ]  # P4


def test_response_without_room_is_given_back_as_it_comes() -> None:
    intake = Intake(max_bytes=30)
    driver = llm_d_driver(intake=intake)
    driver.send(*REQUEST, response_headers(("content-type", "text/html")))

    assert driver.send(response_body(b"x" * 20)) == []
    assert streamed(driver.send(response_body(b"y" * 20)), "response_body") == [
        (b"x" * 20 + b"y" * 20, False)
    ]
    assert streamed(driver.send(response_body(b"z", end=True)), "response_body") == [(b"z", True)]
    assert intake.n_bytes == 0


def test_long_response_has_the_name_that_was_asked_for_and_is_made_as_it_is_sent() -> None:
    rewrite = ModelRewrite(b'{"model":"t"}', "m", "t")
    driver = llm_d_driver(make_route("10.0.0.1:8000", rewrite=rewrite))
    half = b'"model": "t",' * (MAX_AT_ONCE_BYTES // 24)
    driver.send(*REQUEST, response_headers(("content-type", "application/json")), response_body(half))

    last = response_body(half, end=True)
    (reply,) = driver.machine.receive(read_message(last.SerializeToString()), now=0.0).replies

    assert isinstance(reply, LongReply)
    chunks = streamed([pb.ProcessingResponse.FromString(each) for each in reply.messages], "response_body")
    assert b"".join(chunk for chunk, _ in chunks) == (half + half).replace(b'"t"', b'"m"')
    assert [ends for _, ends in chunks] == [False] * (len(chunks) - 1) + [True]
