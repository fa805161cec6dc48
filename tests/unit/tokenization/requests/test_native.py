from __future__ import annotations

import json
from array import array
from typing import Any

import pytest

from kvatlas.indexer.prefix import MediaSpan
from kvatlas.tokenization.model import NoPrefixReason, TokenPrompt
from kvatlas.tokenization.requests.request import parse_body


def parsed(path: str, **fields: Any) -> Any:
    return parse_body(path, json.dumps({"model": "m", **fields}).encode()).prompt


def features(**kinds: list[tuple[str, int, int]]) -> dict[str, Any]:
    """Make the media of an `/inference/v1/generate` body: identifier, offset and length of each item, by kind."""
    return {
        "mm_hashes": {kind: [item[0] for item in items] for kind, items in kinds.items()},
        "mm_placeholders": {
            kind: [{"offset": item[1], "length": item[2]} for item in items] for kind, items in kinds.items()
        },
    }


def test_media_are_ordered_by_their_place_when_token_ids_come_with_features() -> None:
    given_ = features(image=[("a", 5, 2), ("b", 1, 3)], audio=[("c", 4, 1)])
    prompt = parsed("/inference/v1/generate", token_ids=list(range(8)), features=given_)
    assert prompt.media == (MediaSpan("b", 1, 3), MediaSpan("c", 4, 1), MediaSpan("a", 5, 2))


@pytest.mark.parametrize(
    "given_",
    [
        pytest.param(features(image=[("a", 0, 3), ("b", 2, 1)]), id="overlapping"),
        pytest.param(features(image=[("a", 6, 3)]), id="outside"),
        pytest.param(features(image=[("a", 2**62, 2**62)]), id="far_outside"),
        pytest.param(features(image=[("a", -1, 1)]), id="negative"),
        pytest.param({"mm_hashes": {"image": ["a"]}, "mm_placeholders": {}}, id="unpaired"),
        pytest.param({"mm_hashes": {"image": "a"}, "mm_placeholders": {}}, id="of_wrong_type"),
    ],
)
def test_reason_is_malformed_when_features_do_not_fit(given_: dict[str, Any]) -> None:
    prompt = parsed("/inference/v1/generate", token_ids=list(range(8)), features=given_)
    assert prompt.reason == NoPrefixReason.MALFORMED


@pytest.mark.parametrize(
    ("fields", "tokens", "lora"),
    [
        pytest.param({"input_ids": [1, 2]}, [1, 2], None, id="ids"),
        pytest.param({"input_ids": [1], "text": "a"}, [1], None, id="ids_and_text"),
        pytest.param({"input_ids": [[1], [2, 3]]}, [2, 3], None, id="batch"),
        pytest.param({"input_ids": [1], "lora_path": "x"}, [1], "x", id="adapter"),
        pytest.param({"input_ids": [[1], [2, 3]], "lora_path": ["x", "y"]}, [2, 3], "y", id="adapters"),
        pytest.param({"input_ids": [[1], [2, 3]], "lora_path": ["x"]}, [2, 3], None, id="too_few_adapters"),
    ],
)
def test_ids_and_adapter_are_read_when_the_body_is_sglangs_own(
    fields: dict[str, Any], tokens: list[int], lora: str | None
) -> None:
    request = parse_body("/generate", json.dumps(fields).encode())
    assert (request.prompt, request.lora, request.model) == (TokenPrompt(array("I", tokens)), lora, "")


def test_model_may_be_left_out_when_the_body_is_vllms_own() -> None:
    request = parse_body("/inference/v1/generate", b'{"token_ids": [1], "cache_salt": "s", "stream": true}')
    assert (request.model, request.cache_salt, request.stream) == ("", "s", True)
