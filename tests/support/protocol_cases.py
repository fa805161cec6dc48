"""The case list of the endpoint picker protocol as data: what a gateway sends, and what it must receive.

The first word of an id is the row of the list: R request, S subset, E errors, P response, B buffered.

Every server but `empty` knows A to D. Of these C has the shortest queue, then D, B and A.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.struct_pb2 import ListValue, Value

from kvatlas.api.extproc import ext_proc_pb2 as pb
from kvatlas.routing.control_headers import CONTROL_HEADERS
from support import ext_proc_replies as replies
from support.ext_proc import (
    BUFFERED,
    CHAT_HEADERS,
    DUPLEX,
    header_map,
    metadata_of,
    request_body,
    request_headers,
    request_trailers,
    response_body,
    response_headers,
    response_trailers,
    subset_hint,
)
from support.ext_proc_replies import Replies, refused, request_chunks, response_chunks, routed, routed_body

A, B, C, D = "10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000", "10.0.0.1:8001"
WAITING = {A: 3, B: 2, C: 0, D: 1}

SERVERS: Mapping[str, Mapping[str, Any]] = {
    "plain": {"admission": {"objectives": {"batch": -1}}},
    "grpc": {"admission": {"objectives": {"batch": -1}}, "extProc": {"transport": "grpc"}},
    "threads": {"admission": {"objectives": {"batch": -1}}, "extProc": {"threads": 4}},
    "tls": {"admission": {"objectives": {"batch": -1}}, "extProc": {"threads": 1}, "tls": True},
    "tls_threads": {"admission": {"objectives": {"batch": -1}}, "extProc": {"threads": 4}, "tls": True},
    "tls_grpc": {"admission": {"objectives": {"batch": -1}}, "extProc": {"transport": "grpc"}, "tls": True},
    "llm_d": {"extProc": {"compat": "llm-d"}},
    "fallbacks": {"extProc": {"fallbackEndpoints": 2}},
    "small": {"extProc": {"maxBodyBytes": 1000, "maxHeldBytes": 1000}},
    "saturated": {"admission": {"objectives": {"batch": -1}, "queueDepthThreshold": 1}},
    "empty": {},
    "empty_llm_d": {"extProc": {"compat": "llm-d"}},
}
"""Name -> what is special in the configuration; `tls`: whether the server has a certificate."""

LIKE_PLAIN = ("grpc", "threads", "tls", "tls_threads", "tls_grpc")
"""Servers that answer as `plain` does, on another transport."""


@dataclass(frozen=True)
class Case:
    """One stream.

    Attributes:
        id: row of the list, and what is special.
        sent: what the gateway says.
        replies: what it receives, in order and no more.
        server: whom it asks.
        code: how the stream ends.
        counted: sample in /metrics -> how much it grows.
    """

    id: str
    sent: Iterable[pb.ProcessingRequest]
    replies: Replies
    server: str = "plain"
    code: grpc.StatusCode = grpc.StatusCode.OK
    counted: Mapping[str, float] = field(default_factory=dict[str, float])


def chat(**more: object) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": "Hello"}], **more}).encode()


BODY = chat()
GET = request_headers(config=DUPLEX, end=True)
NO_ENDPOINT = (
    "inference error: ServiceUnavailable - failed to find endpoint candidates for serving the request"
)


def post(
    *headers: tuple[str, str], body: bytes = BODY, metadata: pb.Metadata | None = None
) -> list[pb.ProcessingRequest]:
    """Return a request as Envoy sends it in FULL_DUPLEX_STREAMED."""
    first = request_headers(*headers, config=DUPLEX, metadata=metadata)
    return [first, request_body(body), request_body(end=True)]


def went_to(destination: str, body: bytes = BODY, **edits: Any) -> Replies:
    """Return the replies to a routed request."""
    return (routed(destination, **edits), *request_chunks(body))


def to_path(path: str, body: bytes) -> list[pb.ProcessingRequest]:
    """Return a request to another path."""
    headers = header_map([(":method", "POST"), (":path", path), ("x-request-id", "id-1")])
    return [
        pb.ProcessingRequest(request_headers=pb.HttpHeaders(headers=headers)),
        request_body(body, end=True),
    ]


def cut(body: bytes, size: int) -> list[pb.ProcessingRequest]:
    """Return a request with a body in pieces, the last of which ends it."""
    starts = range(0, len(body), size)
    pieces = [request_body(body[start : start + size], end=start == starts[-1]) for start in starts]
    return [request_headers(config=DUPLEX), *pieces]


def odd_headers() -> list[pb.ProcessingRequest]:
    """Keys in mixed case, with values where Envoy does not put them."""
    headers = pb.HeaderMap(
        headers=[
            pb.HeaderValue(key=":Path", value="/v1/chat/completions"),
            pb.HeaderValue(key="X-Request-ID", value="ignored", raw_value=b"id-1"),
            pb.HeaderValue(key="X-LLM-D-Model-Name-Rewrite", value="T"),
        ]
    )
    return [
        pb.ProcessingRequest(request_headers=pb.HttpHeaders(headers=headers)),
        request_body(BODY, end=True),
    ]


LARGE = chat(user="x" * 200_000)
HUGE = chat(user="x" * 8_000_000)
REWRITTEN = b'{"model":"T","messages":[{"role": "user", "content": "Hello"}]}'
OBJECTIVE, REWRITE = "inference-objective", "model-name-rewrite"
LENGTH = {"content-length": str(len(REWRITTEN))}
ECHO = dict(CHAT_HEADERS)

REQUEST_CASES = [
    Case("R1", post(), went_to(C)),
    Case("R2 headers stay", post(("x-user", "u"), ("traceparent", "00-x")), went_to(C)),
    Case("R2 echo", post(("x-user", "u")),
         went_to(C, headers={"Content-Length": str(len(BODY)), **ECHO, "x-user": "u"}), server="llm_d"),
    Case("R3", [GET], (routed(C),)),
    Case("R4", post(), went_to(f"{C},{D},{B}"), server="fallbacks"),
    Case("R5", cut(BODY, 7), went_to(C)),
    Case("R5 every byte", cut(BODY, 1), went_to(C)),
    Case("R6", [request_headers(config=DUPLEX), request_body(BODY), request_body(end=True)], went_to(C)),
    Case("R7 200 kB", cut(LARGE, len(LARGE)), went_to(C, LARGE)),
    Case("R7 8 MB", cut(HUGE, 1_000_000), went_to(C, HUGE)),
    Case("R8", [GET], (routed(C),)),
    Case("R8 echoes nothing", [GET], (routed(C),), server="llm_d"),
    Case("R9", [GET], (refused(503, NO_ENDPOINT, "rejected-no-endpoints"),), server="empty"),
    Case("R9 internal", [GET], (refused(500, "inference error: Internal - no pods available in datastore"),),
         server="empty_llm_d"),
    Case("R10", post(body=b"no healthy upstream"),
         (refused(400, "inference error: BadRequest - error unmarshaling request bodyMap: ..."),)),
    Case("R11", to_path("/v1/completions", b'{"prompt":"hello world"}'),
         (refused(400, "inference error: BadRequest - model not found in request body"),)),
    Case("R12 chat", post(body=b'{"model":"m"}'), (
        refused(400, "inference error: BadRequest - invalid chat completions request: must have valid messages field"),)),
    Case("R12 completions", to_path("/v1/completions", b'{"model":"m"}'),
         (refused(400, "inference error: BadRequest - invalid completions request: must have prompt field"),)),
    Case("R12 responses", to_path("/v1/responses", b'{"model":"m"}'),
         (refused(400, "inference error: BadRequest - invalid responses request: must have input field"),)),
    Case("R13", to_path("/foo", b"\x00 no JSON"), went_to(C, b"\x00 no JSON")),
    Case("R14 prefix and slash", to_path("/provider/v1/chat/completions/?a=b", b'{"model":"m"}'), (
        refused(400, "inference error: BadRequest - invalid chat completions request: must have valid messages field"),)),
    Case("R15", post((f"x-llm-d-{REWRITE}", "T")),
         went_to(C, REWRITTEN, headers=LENGTH, removed=[f"x-llm-d-{REWRITE}"])),
    Case("R15 older name", post((f"x-gateway-{REWRITE}", "T")),
         went_to(C, REWRITTEN, headers=LENGTH, removed=[f"x-gateway-{REWRITE}"])),
    Case("R15 not asked for: byte for byte", post(body=b" " + BODY + b"\n"), went_to(C, b" " + BODY + b"\n")),
    Case("R17", post((f"x-llm-d-{OBJECTIVE}", "unheard-of")), went_to(C, removed=[f"x-llm-d-{OBJECTIVE}"])),
    Case("R19", post((f"x-gateway-{REWRITE}", "old"), (f"x-llm-d-{REWRITE}", "T")),
         went_to(C, REWRITTEN, headers=LENGTH, removed=[f"x-gateway-{REWRITE}", f"x-llm-d-{REWRITE}"])),
    Case("R20", odd_headers(), went_to(C, REWRITTEN, headers=LENGTH, removed=[f"x-llm-d-{REWRITE}"])),
    Case("R21", [pb.ProcessingRequest(request_headers=pb.HttpHeaders(end_of_stream=True))],
         (routed(C, {"x-request-id": replies.ANY_UUID}),)),
    Case("R22", [request_headers(("x-gateway-destination-endpoint", "6.6.6.6:1"),
                                 *((name, "0") for name in sorted(CONTROL_HEADERS)), config=DUPLEX, end=True)],
         (routed(C, removed=sorted(CONTROL_HEADERS)),)),
    Case("R23", [request_headers(config=DUPLEX), request_body(BODY), request_trailers()],
         (routed(C), *request_chunks(BODY, end=False), replies.REQUEST_TRAILERS_PASS)),
    Case("R24 message", post(body=b"x" * 1_100_000), (), server="small", code=grpc.StatusCode.RESOURCE_EXHAUSTED),
    Case("R24 body", post(body=b"x" * 1001),
         (refused(413, "inference error: PayloadTooLarge - request body is larger than 1000 bytes, ..."),),
         server="small"),
    Case("R25 nothing cached", post(("prefer", "if-available")), (
        refused(412, "inference error: PreconditionFailed - no decode worker has the requested KV cache"),)),
]  # fmt: skip


def only(*addresses: str, among: str | Value | None = None) -> list[pb.ProcessingRequest]:
    """Return a request for which the gateway allows these endpoints."""
    value = Value(string_value=among) if isinstance(among, str) else among
    return post(metadata=subset_hint(value if value is not None else list(addresses)))


ODD_LIST = Value(
    list_value=ListValue(
        values=[Value(string_value=f" {A} , {B} "), Value(number_value=3), Value(bool_value=True), Value()]
    )
)
NONE_LEFT = (refused(503, NO_ENDPOINT, "rejected-no-endpoints"),)

SUBSET_CASES = [
    Case("S1", only(A, B), went_to(B)),
    Case("S1 with the body",
         [request_headers(config=DUPLEX), request_body(BODY, end=True, metadata=subset_hint([A]))], went_to(A)),
    Case("S2 single", only(A), went_to(A)),
    Case("S2 partly", only(A, "9.9.9.9:1"), went_to(A)),
    Case("S3", only("9.9.9.9:1"), NONE_LEFT),
    Case("S4", only(), NONE_LEFT),
    Case("S5 no key", post(metadata=metadata_of("envoy.lb.subset_hint", "other", Value(string_value=A))), went_to(C)),
    Case("S5 no namespace", post(metadata=metadata_of("other", "key", Value(string_value=A))), went_to(C)),
    Case("S6", only(among=f" {A}, {B} "), went_to(B)),
    Case("S6 ignored",
         [request_headers(config=DUPLEX, end=True, metadata=subset_hint(Value(string_value=A)))],
         (routed(C),), server="llm_d"),
    Case("S7 every port", only("10.0.0.1"), went_to(D)),
    Case("S7 one port", only(A), went_to(A)),
    Case("S7 ip counts", [request_headers(config=DUPLEX, end=True, metadata=subset_hint([A]))],
         (routed(D),), server="llm_d"),
    Case("S8", only(among=ODD_LIST), went_to(B)),
]  # fmt: skip

BATCH = (f"x-llm-d-{OBJECTIVE}", "batch")
ERROR_CASES = [
    Case("E1", post(BATCH), (
        refused(429, "inference error: ResourceExhausted - system saturated, sheddable request dropped",
                "rejected-saturated"),), server="saturated"),
    Case("E3", post(), NONE_LEFT, server="empty"),
    Case("E4 sheddable", post(BATCH), went_to(C, removed=[BATCH[0]])),
    Case("E4 saturated", post(), went_to(C), server="saturated"),
    Case("E7", post(body=b"{"), (refused(400, "inference error: BadRequest - ..."),)),
]  # fmt: skip

USAGE = {"prompt_tokens": 11, "completion_tokens": "7", "prompt_tokens_details": {"cached_tokens": 8.0}}
JSON = json.dumps({"model": "T", "choices": [], "usage": USAGE}).encode()
EVENT = b'data: {"model":"T","choices":[{}]}\n\n'
LAST = b"data: " + json.dumps({"model": "T", "choices": [], "usage": USAGE}).encode() + b"\n\n"
DONE = b"data: [DONE]\n\n"
RESPONSES_EVENT = b"data: " + json.dumps({"type": "response.completed", "response": {
    "usage": {"input_tokens": 11, "output_tokens": 7, "input_tokens_details": {"cached_tokens": 8}}}}).encode() + b"\n\n"  # fmt: skip
ANTHROPIC_EVENTS = (
    b'event: message_start\ndata: {"message": {"usage": {"input_tokens": 3, "cache_read_input_tokens": 8}}}\n\n'
    b'event: message_delta\ndata: {"usage": {"output_tokens": 7}}\n\n'
)
IS_JSON, IS_EVENTS = ("content-type", "application/json"), ("content-type", "text/event-stream")
TOLD = {
    "kvatlas_response_prompt_tokens_total": 11.0,
    "kvatlas_response_cached_tokens_total": 8.0,
    "kvatlas_response_output_tokens_total": 7.0,
}
UNTOLD = dict.fromkeys(TOLD, 0.0)


def answered(kind: tuple[str, str], *chunks: bytes, status: str = "200") -> list[pb.ProcessingRequest]:
    """Return a request and its response in these chunks, then an empty one that ends it, as Envoy sends it."""
    body = [response_body(chunk) for chunk in chunks]
    return [*post(), response_headers(kind, status=status), *body, response_body(end=True)]


def passed(*chunks: bytes) -> Replies:
    """Return the replies: every chunk at once, including the empty one that ends it."""
    given_back = (answer for chunk in chunks for answer in response_chunks(chunk, end=False))
    return (*went_to(C), replies.RESPONSE_HEADERS_PASS, *given_back, *response_chunks(b""))


def renamed(
    kind: tuple[str, str], sent: bytes, given_back: bytes
) -> tuple[list[pb.ProcessingRequest], Replies]:
    """Return a request with a rewritten model, its response, and the replies."""
    request = post((f"x-llm-d-{REWRITE}", "T"))
    answers = went_to(C, REWRITTEN, headers=LENGTH, removed=[f"x-llm-d-{REWRITE}"])
    return (
        [*request, response_headers(kind), response_body(sent, end=True)],
        (*answers, replies.RESPONSE_HEADERS_PASS, *response_chunks(given_back)),
    )


LLM_D_HEADERS = replies.response_headers_with(
    {"x-went-into-resp-headers": "true", ":status": "200", **dict([IS_JSON])}
)
LLM_D_REQUEST = went_to(C, headers={"Content-Length": str(len(BODY)), **ECHO})

RESPONSE_CASES = [
    Case("P1", answered(IS_JSON), passed()),
    Case("P1 echo", answered(IS_JSON), (*LLM_D_REQUEST, LLM_D_HEADERS, *response_chunks(b"")), server="llm_d"),
    Case("P2 passed", answered(IS_JSON, JSON[:9], JSON[9:]), passed(JSON[:9], JSON[9:]), counted=TOLD),
    Case("P2 whole", answered(IS_JSON, JSON[:9], JSON[9:]),
         (*LLM_D_REQUEST, LLM_D_HEADERS, *response_chunks(JSON)), server="llm_d", counted=TOLD),
    Case("P3", answered(IS_JSON, b"<html>"), passed(b"<html>"),
         counted=UNTOLD | {'kvatlas_responses_without_usage_total{reason="malformed"}': 1.0}),
    Case("P3 other type", answered(("content-type", "text/html"), b"<html>"), passed(b"<html>"),
         counted=UNTOLD | {'kvatlas_responses_without_usage_total{reason="other_type"}': 1.0}),
    Case("P4", answered(IS_EVENTS, EVENT, EVENT, DONE), passed(EVENT, EVENT, DONE)),
    Case("P5", answered(IS_JSON, JSON), passed(JSON), counted=TOLD),
    Case("P6", answered(IS_EVENTS, EVENT, LAST, DONE), passed(EVENT, LAST, DONE), counted=TOLD),
    Case("P6 cut", answered(IS_EVENTS, EVENT + LAST[:20], LAST[20:] + DONE),
         passed(EVENT + LAST[:20], LAST[20:] + DONE), counted=TOLD),
    Case("P6 responses", answered(IS_EVENTS, RESPONSES_EVENT), passed(RESPONSES_EVENT), counted=TOLD),
    Case("P6 anthropic", answered(IS_EVENTS, ANTHROPIC_EVENTS), passed(ANTHROPIC_EVENTS), counted=TOLD),
    Case("P7", answered(IS_EVENTS, EVENT, DONE), passed(EVENT, DONE),
         counted=UNTOLD | {'kvatlas_responses_without_usage_total{reason="absent"}': 1.0}),
    Case("P9 json", *renamed(IS_JSON, JSON, JSON.replace(b'"T"', b'"m"')), counted=TOLD),
    Case("P9 events", *renamed(IS_EVENTS, EVENT + LAST, (EVENT + LAST).replace(b'"T"', b'"m"')), counted=TOLD),
    Case("P10", [*post(), response_headers(IS_JSON), response_body(JSON), response_trailers()],
         (*went_to(C), replies.RESPONSE_HEADERS_PASS, *response_chunks(JSON, end=False), replies.RESPONSE_TRAILERS_PASS),
         counted=TOLD | {'kvatlas_requests_total{outcome="completed"}': 1.0}),
    Case("P11", [response_headers(IS_JSON), response_body(JSON, end=True)],
         (replies.RESPONSE_HEADERS_PASS, *response_chunks(JSON)), counted=UNTOLD),
    Case("P13", answered(IS_JSON, JSON, status="503"), passed(JSON),
         counted=UNTOLD | {'kvatlas_responses_total{status="5xx"}': 1.0}),
    Case("P14", post(), went_to(C), counted={'kvatlas_requests_total{outcome="aborted"}': 1.0}),
]  # fmt: skip

BUFFERED_CASES = [
    Case("B1", [request_headers(config=BUFFERED), request_body(BODY, end=True)],
         (replies.headers_without(), routed_body(C)), counted={'kvatlas_requests_total{outcome="routed"}': 1.0}),
    Case("B2", [request_headers((f"x-llm-d-{REWRITE}", "T"), config=BUFFERED), request_body(BODY, end=True)],
         (replies.headers_without(f"x-llm-d-{REWRITE}"), routed_body(C, LENGTH, body=REWRITTEN))),
]  # fmt: skip

CASES = [*REQUEST_CASES, *SUBSET_CASES, *ERROR_CASES, *RESPONSE_CASES, *BUFFERED_CASES]

ELSEWHERE: Mapping[str, str] = {
    "R18": "tests/integration/test_picker.py",
    "E6": "tests/unit/api/test_errors.py",
    "P8": "tests/unit/api/extproc/test_usage.py",
    "P12": "tests/integration/test_envoy_extproc.py",
    "H1": "tests/integration/test_extproc_health.py",
    "H2": "tests/integration/test_extproc_health.py",
    "H3": "tests/integration/test_extproc_health.py",
    "C1": "tests/integration/test_envoy_extproc.py",
    "C2": "tests/integration/test_envoy_faults.py",
}
"""Rows that cannot be seen from a stream -> the tests that see them."""

NOT_HERE: Mapping[str, str] = {
    "R16": "rules that rewrite models are Kubernetes objects; a rule would give what R15 gives",
    "E2": "requests wait in no queue",
    "E5": "requests are not evicted",
    "E8": "the scheduler has no error without a type",
    "P15": "streams stay open: closing one holds up the first token of one response in five",
    "P16": "nothing sets metadata on a response",
    "C3": "the conformance suite's own picker sets that header",
}
"""Rows without a meaning for kvatlas -> why."""
