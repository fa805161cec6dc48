"""Ids of the media in prompts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvatlas.tokenization import media
from kvatlas.tokenization.media import media_ids
from kvatlas.tokenization.requests.request import parse_body


def image(url: str, **more: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, **more}}


def ids_of(*parts: object) -> tuple[int, ...]:
    body = {"model": "m", "messages": [{"role": "user", "content": list(parts)}]}
    return media_ids(parse_body("/v1/chat/completions", json.dumps(body).encode()).prompt)


ONE, OTHER = image("http://x/1.png"), image("http://x/2.png")
TEXT = {"type": "text", "text": "see"}


def test_each_item_has_an_id_once_in_order() -> None:
    assert ids_of(TEXT, ONE, ONE, OTHER) == ids_of(ONE) + ids_of(OTHER)
    assert ids_of(TEXT) == ()


@pytest.mark.parametrize(
    ("part", "other"),
    [
        pytest.param(ONE, image("http://x/1.png", detail="low"), id="detail"),
        pytest.param({**ONE, "uuid": "u"}, {**OTHER, "uuid": "u"}, id="uuid"),
        pytest.param(
            {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
            {"type": "input_audio", "input_audio": {"format": "wav", "data": "AAAA"}},
            id="audio",
        ),
    ],
)
def test_equal_content_has_equal_ids(part: dict[str, Any], other: dict[str, Any]) -> None:
    assert ids_of(part) == ids_of(other) != ()


def test_media_that_are_named_beside_token_ids_have_ids() -> None:
    features = {
        "mm_hashes": {"image": ["cat", "dog"]},
        "mm_placeholders": {"image": [{"offset": 0, "length": 2}, {"offset": 2, "length": 2}]},
    }
    body = json.dumps({"model": "m", "token_ids": [1, 2, 3, 4, 5], "features": features}).encode()
    assert len(media_ids(parse_body("/inference/v1/generate", body).prompt)) == 2


def test_number_of_ids_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media, "MAX_MEDIA", 3)
    assert len(ids_of(*(image(f"http://x/{number}.png") for number in range(9)))) == 3


def test_prompt_without_conversation_has_no_media() -> None:
    assert media_ids(parse_body("/v1/completions", b'{"model": "m", "prompt": "x"}').prompt) == ()
