"""Which prompts without token ids are kept as text, for keys of their bytes."""

from __future__ import annotations

import json

import pytest

from kvatlas.tokenization.encoding.byte_form import MAX_BYTES
from kvatlas.tokenization.pipeline import PromptPipeline


@pytest.mark.parametrize(("n_chars", "is_kept"), [(MAX_BYTES - 100, True), (MAX_BYTES, False)])
async def test_text_is_kept_for_keys_of_its_bytes_if_they_can_be_made_in_a_moment(
    n_chars: int, is_kept: bool
) -> None:
    body = json.dumps({"model": "m", "prompt": "x" * n_chars}).encode()
    prompt = await PromptPipeline(None).prompt("/v1/completions", body)
    assert (prompt.unencoded is not None) is is_kept
