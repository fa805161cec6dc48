"""The doctor's checks of requests and responses, on a running process with real sockets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pytest
from google.protobuf.struct_pb2 import Value

from kvatlas.api.extproc import ext_proc_pb2 as pb
from support.ext_proc import BUFFERED, DUPLEX, metadata_of, response_body, response_headers
from support.fleets import NOWHERE, make_endpoint
from support.local_process import local_process, until_held
from support.recording import player

USAGE = b'{"usage": {"prompt_tokens": 64, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 48}}}'
JSON = ("content-type", "application/json")


def response(served: str | None, body: bytes = USAGE) -> list[pb.ProcessingRequest]:
    """Return the messages of a response from the endpoint at `served`, None if unknown."""
    key, value = "x-gateway-destination-endpoint-served", Value(string_value=served or "")
    metadata = metadata_of("envoy.lb", key, value) if served else None
    return [response_headers(JSON, metadata=metadata), response_body(body, end=True)]


class Sent(NamedTuple):
    """Twenty requests of one kind, and the messages of their responses."""

    responses: Sequence[pb.ProcessingRequest] = ()
    config: pb.ProtocolConfiguration = DUPLEX
    path: str = "/v1/completions"
    events: str = ""
    """Where the endpoint should send its events; empty: it has none, and is known from routing."""


@pytest.mark.parametrize(
    ("sent", "name", "state", "evidence", "remedy"),
    [
        pytest.param(
            Sent(path="/v1/chat/completions"),
            "prompts-tokenized", "warn", "20 of 20 without token ids: no_tokenizer", "model.tokenizer:",
            id="no_tokenizer",
        ),
        pytest.param(
            Sent(response("127.0.0.1:1"), events=NOWHERE),
            "prefixes-found", "fail",
            "engines found 960 of 1280 prompt tokens in their caches; foreseen were 0", "--chat-template",
            id="keys_that_never_match",
        ),
        pytest.param(
            Sent(config=BUFFERED),
            "responses-shown", "warn", "of 20 of 20 requests the gateway did not show the response",
            "response_header_mode: SEND", id="hidden_responses",
        ),
        pytest.param(
            Sent(response("127.0.0.1:1", b"{}")),
            "responses-shown", "warn", "20 of 20 answers had no token counts", "include_usage", id="no_usage",
        ),
        pytest.param(
            Sent(response("10.9.9.9:1")),
            "picks-obeyed", "fail", "20 of 20 answers came from an endpoint that kvatlas had not named",
            "x-gateway-destination-endpoint", id="served_elsewhere",
        ),
        pytest.param(
            Sent(response(None)),
            "picks-obeyed", "warn", "of 20 of 20 answers the gateway did not tell who served them",
            "response_attributes: [upstream.address]", id="server_unknown",
        ),
    ],
)  # fmt: skip
async def test_outcome_of_requests_is_reported(
    sent: Sent, name: str, state: str, evidence: str, remedy: str
) -> None:
    async with local_process(make_endpoint("a", events=sent.events)) as process:
        assert (await process.checks())[name]["state"] == "unknown"
        await process.send_requests(20, config=sent.config, path=sent.path, responses=sent.responses)
        found = await process.until_state(name, state)
    assert evidence in found["evidence"]
    assert remedy in found["remedies"][0]


async def test_verdict_is_reported_when_expectations_do_not_hold() -> None:
    nothing_cached = USAGE.replace(b'"cached_tokens": 48', b'"cached_tokens": 0')
    async with player() as engine, local_process(make_endpoint("a", events=engine.events)) as process:
        await until_held(process, engine)
        await process.send_requests(20, responses=response("127.0.0.1:1", nothing_cached))
        found = await process.until_state("expectations-held", "warn")
    assert found["evidence"][0].startswith("a: 0 of 20 requests reused what was expected; ")
    assert found["remedies"][0].startswith("docs/audit.md says what each verdict calls for: ")


async def test_keys_are_not_judged_by_prompts_without_token_ids() -> None:
    async with local_process(make_endpoint("a", events="")) as process:
        await process.send_requests(20, path="/v1/chat/completions", responses=response("127.0.0.1:1"))
        await process.until_state("responses-shown", "ok")
        found = (await process.checks())["prefixes-found"]
    assert found["state"] == "unknown"
    (evidence,) = found["evidence"]
    assert evidence.endswith("foreseen were 0; too few prompts have token ids to judge by")


async def test_checks_are_ok_when_requests_went_well() -> None:
    async with local_process(make_endpoint("a", events="")) as process:
        await process.send_requests(20, responses=response("127.0.0.1:1"))
        obeyed = await process.until_state("picks-obeyed", "ok")
        assert (await process.checks())["prompts-tokenized"]["state"] == "ok"
        assert (await process.checks())["responses-shown"]["state"] == "ok"
    assert obeyed["evidence"] == ["20 of 20 answers came from the endpoint picked"]
