"""Bodies of questions: read without an object for each number, with the results and errors of reading them as a whole."""

from __future__ import annotations

import json
import re
from array import array
from functools import cache
from typing import Any, Self

import httpx
import msgspec
import pytest
from fastapi import FastAPI, Response
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from pydantic import BaseModel
from starlette.types import ASGIApp

from kvatlas.api.client import query_body, query_by_hash_body
from kvatlas.api.rest.errors import install_error_handlers
from kvatlas.api.rest.metrics import RestMetrics
from kvatlas.api.rest.models import QueryByHashRequest, QueryRequest, ScoreRequest
from kvatlas.api.rest.question_bodies import JSON, MSGPACK
from kvatlas.api.rest.questions import Question, QuestionDoor
from kvatlas.tokenization.reading import Reader
from kvatlas.tokenization.requests.cost import LIGHT_BYTES, MAX_LIGHT_BYTES
from kvatlas.tokenization.requests.numbers import cut_numbers

MODELS: dict[str, type[BaseModel]] = {
    "/query": QueryRequest,
    "/query_by_hash": QueryByHashRequest,
    "/v1/score": ScoreRequest,
}
MAX_COST = 400_000
BYTE = re.compile(rb" \(byte \d+\)")
"""Place of an error in a body."""


async def shown(asked: BaseModel, _n_bytes: int = 0) -> bytes:
    """Answer with every field as it was read; hashes modulo 2**64, as they are used."""
    fields = {name: getattr(asked, name) for name in type(asked).model_fields}
    for name in ("seq_hashes", "block_hashes", "keys"):
        if fields.get(name) is not None:
            fields[name] = [each % 2**64 for each in fields[name]]
    return json.dumps(fields, default=list[int]).encode()


@cache
def library() -> FastAPI:
    """Return an application that reads bodies itself."""
    app = FastAPI()
    install_error_handlers(app)

    @app.post("/query")
    async def query(asked: QueryRequest) -> Response:
        return Response(await shown(asked), media_type=JSON)

    @app.post("/query_by_hash")
    async def query_by_hash(asked: QueryByHashRequest) -> Response:
        return Response(await shown(asked), media_type=JSON)

    @app.post("/v1/score")
    async def score(asked: ScoreRequest) -> Response:
        return Response(await shown(asked), media_type=JSON)

    return app


class Doors:
    """The library alone, and behind the door."""

    def __init__(self) -> None:
        self.reader = Reader(max_cost=MAX_COST, timeout_s=60)
        self.registry = CollectorRegistry()
        door = QuestionDoor(
            library(),
            questions={path: Question(model, shown) for path, model in MODELS.items()},
            reader=self.reader,
            metrics=RestMetrics(self.registry),
        )
        self._apps: dict[str, ASGIApp] = {"library": library(), "door": door}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.reader.close()

    async def ask(
        self, path: str, body: bytes, *, of: str = "door", content_type: str = JSON
    ) -> tuple[int, bytes]:
        transport = httpx.ASGITransport(self._apps[of])
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            answer = await client.post(path, content=body, headers={"content-type": content_type})
        return answer.status_code, answer.content


NUMBERS = st.one_of(
    st.integers(0, 2**17),
    st.sampled_from([0, 9_999_999, 10_000_000, 99_999_999, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1]),
    st.sampled_from([-1, -(2**63)]),
)
PARTS = st.one_of(
    NUMBERS.map(str),
    st.integers(0, 300_000).map(str),
    st.sampled_from(
        [
            "2e3",
            "1.0",
            "1.5",
            "-0",
            "007",
            "-",
            "+1",
            "4294967296",
            "18446744073709551616",
            "1e400",
            "NaN",
            "null",
            "true",
            '"7"',
            "[]",
            "[1]",
            "{}",
            "",
            " ",
            "1 2",
            "é",
            "0x1",
            "-9223372036854775809",
        ]
    ),
)
SPACES = st.sampled_from(["", "", "", " ", "\n", "\t", " \r\n ", "\f", "\u00a0"])


@st.composite
def lists(draw: st.DrawFn) -> str:
    """Write a list, mostly of plain numbers."""
    space = draw(SPACES)
    plain = draw(st.lists(st.integers(0, 2**17).map(str), max_size=6))
    odd = draw(st.lists(PARTS, max_size=2))
    at = draw(st.integers(0, len(plain)))
    parts = [*plain[:at], *odd, *plain[at:]]
    return (
        draw(st.sampled_from(["[", "[", "[", "[ ", "", "[,"]))
        + f"{space},{space}".join(parts)
        + draw(st.sampled_from(["]", "]", "]", "\n]", ",]", ""]))
    )


NAMES = st.sampled_from(
    [
        "token_ids",
        "token_ids",
        "seq_hashes",
        "block_hashes",
        "keys",
        "model",
        "model_name",
        "cache_salt",
        "block_size",
        "instance_id",
        "prompt",
        "token\\u005fids",
        "x",
        "TOKEN_IDS",
        "",
        '\\"',
        "messages",
    ]
)
VALUES = st.one_of(
    lists(),
    lists(),
    st.sampled_from(
        [
            "null",
            '"a"',
            '"\\ud800"',
            "16",
            "-1",
            "NaN",
            '"]}"',
            '"\\\\"',
            '{"a": [1, {"b": "]"}]}',
            '"é"',
            "[[1], [2]]",
            "[{}]",
            "1e999",
            "99999999999999999999999",
            '"unclosed',
            "tru",
            "{",
            "\x00",
            '[{"role": "user"}]',
        ]
    ),
)


@st.composite
def bodies(draw: st.DrawFn) -> str:
    """Write a body that is nearly an object with lists of integers."""
    space = draw(SPACES)
    members = draw(st.lists(st.tuples(NAMES, VALUES), max_size=4))
    written = [f'{space}"{name}"{space}:{space}{value}' for name, value in members]
    begin, end = draw(
        st.sampled_from(
            [
                ("{", "}"),
                ("{", "}"),
                ("{", "}"),
                (" {", "} "),
                ("[", "]"),
                ("{", ""),
                ("{", ",}"),
                ("\ufeff{", "}"),
            ]
        )
    )
    return begin + ",".join(written) + end


@given(path=st.sampled_from(sorted(MODELS)), body=bodies())
async def test_door_answers_as_the_library_alone(path: str, body: str) -> None:
    with Doors() as doors:
        data = body.encode(errors="surrogatepass")
        assert await doors.ask(path, data) == await doors.ask(path, data, of="library")


@given(path=st.sampled_from(sorted(MODELS)), body=bodies())
async def test_long_body_is_read_as_if_it_had_no_list_to_cut(path: str, body: str) -> None:
    with Doors() as doors:
        padding = b" " * (LIGHT_BYTES + 1)
        data = body.encode(errors="surrogatepass") + padding
        # An escape in a name means the same, and nothing is cut.
        whole = body
        for name in ("token_ids", "seq_hashes", "block_hashes", "keys"):
            whole = whole.replace(f'"{name}"', f'"\\u{ord(name[0]):04x}{name[1:]}"')
        status, found = await doors.ask(path, data)
        other_status, other = await doors.ask(path, whole.encode(errors="surrogatepass") + padding)
        assert (status, BYTE.sub(b"", found)) == (other_status, BYTE.sub(b"", other))


@pytest.mark.parametrize("n_bytes", [LIGHT_BYTES - 20, LIGHT_BYTES + 20, MAX_LIGHT_BYTES + 20])
@pytest.mark.parametrize("space", ["", " "])
async def test_list_of_any_length_is_read(n_bytes: int, space: str) -> None:
    with Doors() as doors:
        ids = [1000 + number % 9000 for number in range(n_bytes // (5 + len(space)))]
        body = json.dumps({"model": "m", "token_ids": ids}, separators=(f",{space}", ":")).encode()
        status, answer = await doors.ask("/query", body)
        assert (status, json.loads(answer)["token_ids"] == ids) == (200, True)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        pytest.param({"token_ids": [7] * 40_000 + [2**32]}, "token_ids.40000", id="too_large"),
        pytest.param({"token_ids": [7] * 40_000 + [-1]}, "token_ids.40000", id="negative"),
        pytest.param({"token_ids": [7] * 40_000 + [1.5]}, "token_ids.40000", id="fraction"),
        pytest.param({"token_ids": [7] * 40_000, "block_size": 0}, "block_size", id="another_field"),
    ],
)
async def test_error_names_the_place(body: Any, field: str) -> None:
    with Doors() as doors:
        status, answer = await doors.ask("/query", json.dumps(body).encode())
        assert (status, json.loads(answer)["error"]["detail"][0]["field"]) == (422, field)


@pytest.mark.parametrize("path", sorted(MODELS))
@pytest.mark.parametrize("size", [pytest.param(0, id="zero"), pytest.param(2**32, id="no_u32")])
async def test_block_size_is_a_number_that_the_index_takes(path: str, size: int) -> None:
    with Doors() as doors:
        body = {"model": "m", "token_ids": [1], "block_size": size}
        status, answer = await doors.ask(path, json.dumps(body).encode())
        assert (status, json.loads(answer)["error"]["detail"][0]["field"]) == (422, "block_size")


@pytest.mark.parametrize("space", ["", " "])
@pytest.mark.parametrize(
    "numbers", [pytest.param(MAX_COST - 63, id="within"), pytest.param(MAX_COST - 62, id="past_the_limit")]
)
async def test_list_that_costs_too_much_is_refused(numbers: int, space: str) -> None:
    with Doors() as doors:
        body = f'{{"token_ids":[{f",{space}".join(["1"] * numbers)}]}}'.encode()
        status, answer = await doors.ask("/query", body)
        assert status == (413 if numbers > MAX_COST - 63 else 200)
        assert (b"tokenization.maxReadingCost" in answer) == (status == 413)


async def test_client_writes_what_is_answered_as_json() -> None:
    with Doors() as doors:
        for path, body, same in [
            (
                "/query",
                query_body([1, 2**32 - 1], model="m", tenant_id=None),
                {"token_ids": [1, 2**32 - 1], "model": "m"},
            ),
            (
                "/query_by_hash",
                query_by_hash_body([2**64 - 1], block_size=16),
                {"seq_hashes": [2**64 - 1], "block_size": 16},
            ),
        ]:
            found = await doors.ask(path, body, content_type=MSGPACK)
            assert found == await doors.ask(path, json.dumps(same).encode())


def packed(value: object) -> bytes:
    return msgspec.msgpack.encode(value)


def words(numbers: list[int], code: str) -> bytes:
    return b"".join(number.to_bytes({"I": 4, "Q": 8}[code], "little") for number in numbers)


@pytest.mark.parametrize(
    ("path", "value", "same"),
    [
        pytest.param(
            "/query",
            {"token_ids": words([0, 7, 2**32 - 1], "I"), "model": "m", "instance_id": 5},
            {"token_ids": [0, 7, 2**32 - 1], "model": "m", "instance_id": 5},
            id="token_ids",
        ),
        pytest.param("/query", {"token_ids": [1, 2]}, {"token_ids": [1, 2]}, id="list"),
        pytest.param("/query", {"token_ids": b""}, {"token_ids": []}, id="empty"),
        pytest.param(
            "/query_by_hash",
            {"seq_hashes": words([1, 2**64 - 1], "Q"), "block_size": 16},
            {"seq_hashes": [1, 2**64 - 1], "block_size": 16},
            id="hashes",
        ),
        pytest.param(
            "/v1/score",
            {"keys": words([3], "Q"), "model": "é" * 70_000},
            {"keys": [3], "model": "é" * 70_000},
            id="long_text",
        ),
        pytest.param(
            "/v1/score", {"messages": [{"role": "user"}]}, {"messages": [{"role": "user"}]}, id="messages"
        ),
        pytest.param("/query", {"model": "m"}, {"model": "m"}, id="missing"),
        pytest.param("/query", {"token_ids": [1, -1]}, {"token_ids": [1, -1]}, id="negative"),
        pytest.param("/v1/score", {"x": 1}, {"x": 1}, id="unknown_field"),
        pytest.param("/query", {"token_ids": "text"}, {"token_ids": "text"}, id="text"),
    ],
)
async def test_message_pack_is_answered_as_json(path: str, value: object, same: object) -> None:
    with Doors() as doors:
        found = await doors.ask(path, packed(value), content_type=MSGPACK)
        assert found == await doors.ask(path, json.dumps(same).encode())


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        pytest.param(b"", 422, "body", id="nothing"),
        pytest.param(b"\xc1", 422, "body", id="no_message_pack"),
        pytest.param(packed([1]), 422, "body", id="no_map"),
        pytest.param(packed({"token_ids": b"abc"}), 422, "token_ids", id="half_a_number"),
        pytest.param(packed({"token_ids": b"", "model": b"m"}), 422, "model", id="binary_text"),
        pytest.param(packed({"token_ids": b""}) + b"\x00", 422, "body", id="more_behind"),
        pytest.param(packed({"token_ids": b"", "x": {1.5: b""}})[:-1], 422, "body", id="cut_off"),
        pytest.param(b"\x81\xa1x" + b"\x91" * 5000 + b"\x90", 422, "body", id="nested"),
        pytest.param(packed({str(number): 0 for number in range(65)}), 413, None, id="members"),
        pytest.param(b"\xdf\xff\xff\xff\xff", 413, None, id="members_that_do_not_come"),
        pytest.param(packed({"token_ids": b"", "x": [0] * 70_000}), 413, None, id="many_values"),
        pytest.param(packed({"token_ids": bytes(4 * MAX_COST + 4)}), 413, None, id="many_ids"),
    ],
)
async def test_message_pack_that_cannot_be_read_is_refused(
    body: bytes, status: int, field: str | None
) -> None:
    with Doors() as doors:
        found, answer = await doors.ask("/query", body, content_type=MSGPACK)
        error = json.loads(answer)["error"]
        assert (found, error["detail"][0]["field"] if field else None) == (status, field)
        refused = doors.registry.get_sample_value("kvatlas_rest_refusals_total", {"reason": "too_complex"})
        assert refused == (1.0 if status == 413 else None)


@given(data=st.binary(max_size=60))
async def test_any_bytes_as_message_pack_are_answered(data: bytes) -> None:
    with Doors() as doors:
        status, _ = await doors.ask("/query", data, content_type=MSGPACK)
        assert status in {200, 413, 422}


def test_lists_are_cut_and_the_rest_stays_as_it_is() -> None:
    cut = cut_numbers(b'{ "token_ids" : [1, 2 ,3], "x": [1], "keys":[-1]}', ScoreRequest.numbers)
    assert cut is not None
    assert cut.rest == b'{ "token_ids" : [], "x": [1], "keys":[]}'
    assert cut.lists == {"token_ids": array("I", [1, 2, 3]), "keys": array("Q", [2**64 - 1])}
