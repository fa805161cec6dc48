"""Stored responses: which request needs which server, and what is remembered of them."""

from __future__ import annotations

import pytest

from kvatlas.routing import stored_responses
from kvatlas.routing.stored_responses import StoredResponses, wanted_response
from kvatlas.tokenization.model import NO_STATE, ServerState
from kvatlas.tokenization.requests.request import parse_body

ID = "resp_" + "0a" * 16


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        pytest.param("", NO_STATE, id="plain"),
        pytest.param(f', "previous_response_id": "{ID}"', ServerState(ID), id="continued"),
        pytest.param(', "background": true', ServerState("", is_background=True), id="background"),
        pytest.param(', "background": true, "stream": true', NO_STATE, id="streamed"),
        pytest.param(', "background": null, "previous_response_id": null', NO_STATE, id="null"),
        pytest.param(', "background": "yes"', NO_STATE, id="no_boolean"),
    ],
)
def test_body_names_what_it_needs_of_one_server(fields: str, state: ServerState) -> None:
    body = f'{{"model": "m", "input": "Hello"{fields}}}'.encode()
    assert parse_body("/v1/responses", body).state == state


@pytest.mark.parametrize(
    ("path", "previous", "wanted"),
    [
        pytest.param("/v1/responses", "", "", id="new"),
        pytest.param("/v1/responses", ID, ID, id="continued"),
        pytest.param("/v1/responses", "resp_" + "x" * 251, "", id="longer_than_any"),
        pytest.param("/v1/responses", "msg_1", "", id="no_response"),
        pytest.param(f"/v1/responses/{ID}", "", ID, id="read"),
        pytest.param(f"/openai/v1/responses/{ID}?stream=true&starting_after=4", "", ID, id="read_on"),
        pytest.param(f"/v1/responses/{ID}/cancel", "", ID, id="cancelled"),
        pytest.param(f"/v1/responses/{ID}/input_items", "", ID, id="its_input"),
        pytest.param(f"/v1/responses/{ID}%2F..", "", "", id="escaped"),
        pytest.param("/v1/responses/render", "", "", id="render"),
        pytest.param(f"/v1/completions?from=/responses/{ID}", "", "", id="query"),
        pytest.param("/v1/responses/resp_" + "x" * 60_000, "", "", id="long_path"),
    ],
)
def test_request_wants_the_response_that_its_path_or_body_names(
    path: str, previous: str, wanted: str
) -> None:
    state = ServerState(previous) if previous else NO_STATE
    assert wanted_response(path, state) == wanted


def test_only_the_latest_responses_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_responses, "MAX_RESPONSES", 3)
    stored = StoredResponses()
    for number in range(4):
        stored.add(f"resp_{number}", f"10.0.0.{number}:8000")
    stored.add("resp_1", "10.0.0.9:8000")

    assert [stored.address_of(f"resp_{number}") for number in range(4)] == [
        None, "10.0.0.9:8000", "10.0.0.2:8000", "10.0.0.3:8000"
    ]  # fmt: skip
    assert len(stored) == 3


def test_replicas_share_responses_by_digest() -> None:
    one, other = StoredResponses(), StoredResponses()
    one.shared.on_change = lambda: None
    one.add(ID, "10.0.0.1:8000")

    ((key, address),) = one.shared.changed.items()
    other.shared.on_use(key, address, 1.0, 2.0)

    assert ID not in key
    assert other.address_of(ID) == "10.0.0.1:8000"
    assert other.shared.uses() == {key: ("10.0.0.1:8000", 1.0)}
