"""Recorded answers of engines that pass: every cut gives the same bytes, and the same account as the whole answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("kvatlas.api.http2._native", reason="built without a compiler")

from kvatlas.api.extproc.intake import Intake
from kvatlas.api.extproc.usage import usage_reader
from kvatlas.routing.outcome import Usage
from support.passing import MODES, both, chunks, cut
from support.replay.messages import response
from support.replay.recordings import Json

GOLDEN = Path(__file__).parents[3] / "golden"
JSON, EVENTS = "application/json", "text/event-stream"
Answer = tuple[str, bytes]
"""Content type and body."""


def lines(*names: str) -> Iterator[Json]:
    for name in names:
        for file in sorted((GOLDEN / name).glob("*.jsonl")):
            yield from map(json.loads, file.read_bytes().splitlines())


def of_engines() -> Iterator[Answer]:
    """Yield what engines answered the sidecar: chat, completions, responses and messages."""
    for case in lines("sidecar"):
        for leg in case.get("legs", ()):
            said: Json = leg.get("answered") or {}
            if "sse" in said:
                yield EVENTS, "".join(said["sse"]).encode()
            elif (body := said.get("body")) is not None:
                yield JSON, (body if isinstance(body, str) else json.dumps(body)).encode()


def of_pickers() -> Iterator[Answer]:
    """Yield the answers that the reference picker has passed on."""
    for case in lines("picker/plugins"):
        for respond in (step["respond"] for step in case.get("steps", ()) if "respond" in step):
            yield respond.get("content_type", JSON), response(respond).body


ANSWERS = sorted({each for each in (*of_engines(), *of_pickers()) if b"tokens" in each[1]})
FORMS = {
    "chat": b"chat.completion",
    "completions": b"text_completion",
    "responses": b"input_tokens_details",
    "messages": b"cache_read_input_tokens",
}


def whole(answer: Answer) -> object:
    """Return the usage of an answer that came in one piece."""
    reader = usage_reader(content_type=answer[0], content_encoding="", budget=Intake().share())
    reader.feed(answer[1])
    return reader.end()


@pytest.mark.parametrize("kind", [JSON, EVENTS])
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_recordings_have_answers_of_every_api(form: bytes, kind: str) -> None:
    found = [each for each in ANSWERS if each[0] == kind and form in each[1]]

    assert any(isinstance(whole(each), Usage) for each in found)


@pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.slow), 3, 7, 61])
def test_answer_in_equal_pieces_has_the_account_of_the_whole(size: int) -> None:
    for kind, body in ANSWERS:
        pieces = [body[start : start + size] for start in range(0, len(body), size)]

        completion, passed = both(MODES["duplex"], kind, chunks(pieces), at_once=False)

        assert completion.response.usage == whole((kind, body))
        assert passed.n_messages == (kind == "text/event-stream"), "the first event comes to Python"


@pytest.mark.parametrize("mode", MODES)
@given(
    answer=st.sampled_from(ANSWERS),
    places=st.lists(st.integers(0, 1 << 16), max_size=8),
    at_once=st.booleans(),
)
def test_answer_cut_anywhere_has_the_account_of_the_whole(
    mode: str, answer: Answer, places: list[int], at_once: bool
) -> None:
    completion, passed = both(MODES[mode], answer[0], chunks(cut(answer[1], places)), at_once=at_once)

    assert completion.response.usage == whole(answer)
    assert not passed.n_messages or answer[0] == "text/event-stream"
