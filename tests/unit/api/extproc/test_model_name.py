"""The model's name in responses, as the client asked for it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.api.extproc.model_name import ModelName
from kvatlas.routing.router import ModelRewrite

NAMES = st.text(min_size=1, max_size=8) | st.sampled_from(["m", 'a"b', "a\\1b", "org/model", "mo", "model"])


def restored(pieces: list[bytes], *, target: str = "lora", asked_for: str = "base") -> list[bytes]:
    name = ModelName(ModelRewrite(b"", asked_for, target))
    return [name.restored(piece, end=index + 1 == len(pieces)) for index, piece in enumerate(pieces)]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param(b'{"model":"lora","x":1}', b'{"model":"base","x":1}', id="P9_compact"),
        pytest.param(b'{"model": "lora"}', b'{"model": "base"}', id="P9_with_blank"),
        pytest.param(b'data: {"model":"lora"}\n\ndata: {"model":"lora"}\n\n',
                     b'data: {"model":"base"}\n\ndata: {"model":"base"}\n\n', id="P9_each_event"),
        pytest.param(b'{"model":"loraX"}', b'{"model":"loraX"}', id="longer_name"),
        pytest.param(b'{"text":"\\"model\\":\\"lora\\""}', b'{"text":"\\"model\\":\\"lora\\""}', id="inside_a_text"),
        pytest.param(b'{"model":"', b'{"model":"', id="cut_off"),
    ],
)  # fmt: skip
def test_name_is_replaced_wherever_the_body_is_cut(body: bytes, expected: bytes) -> None:
    for cut in range(len(body) + 1):
        assert b"".join(restored([body[:cut], body[cut:]])) == expected
    assert b"".join(restored([bytes([byte]) for byte in body])) == expected


def test_only_what_may_begin_a_name_is_held_back() -> None:
    assert restored([b'{"id":1,"mod', b'el":"lora"}', b""]) == [b'{"id":1,', b'"model":"base"}', b""]


@given(NAMES, NAMES, st.lists(st.integers(0, 200), max_size=6))
def test_members_of_any_names_are_replaced_cut_anywhere(target: str, asked_for: str, cuts: list[int]) -> None:
    body, expected = (
        b'{"id":"x","model":' + json.dumps(name, ensure_ascii=False).encode() + b',"m":"model"}'
        for name in (target, asked_for)
    )
    places = sorted(min(cut, len(body)) for cut in cuts)
    pieces = [body[a:b] for a, b in zip([0, *places], [*places, len(body)], strict=True)]

    assert b"".join(restored(pieces, target=target, asked_for=asked_for)) == expected
