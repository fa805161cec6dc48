"""Tokenization in a running `kvatlas serve`: cache, time budget and changed files."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from itertools import count
from pathlib import Path
from typing import Any, cast

import pytest

from support.gateway import gateway
from support.serve import Served, serving
from support.waiting import until

LONG = "".join(f"line {number} of the long text\n" for number in range(25_000))
"""Takes a thread about 150 ms."""

ENDPOINT = {"name": "a", "address": "127.0.0.1:1", "events": "", "replay": "", "metrics": ""}


@pytest.fixture
def folder(golden: Path, tmp_path: Path) -> Path:
    """Return a copy of the tiny model that tests may change."""
    copy = tmp_path / "model"
    copy.mkdir()
    for file in (golden / "tiny-model").iterdir():
        shutil.copyfile(file, copy / file.name)
    return copy


def config(folder: Path, **tokenization: Any) -> dict[str, Any]:
    return {
        "model": {"names": ["tiny"], "tokenizer": str(folder), "maxModelLen": 1_000_000},
        "tokenization": tokenization,
        "endpoints": {"static": [ENDPOINT]},
    }


async def metric(served: Served, name: str) -> float:
    (value,) = re.findall(rf"^{re.escape(name)} (\S+)$", await served.metrics(), flags=re.MULTILINE)
    return float(value)


async def score(served: Served, prompt: str) -> tuple[int, str | None]:
    """Return the tokens of a prompt, and the reason for a missing prefix."""
    answer = await served.post("/v1/score", {"model": "tiny", "prompt": prompt})
    return answer["tokens"], answer["noPrefixReason"]


@pytest.mark.slow
async def test_only_new_text_is_encoded_when_a_prompt_grows(folder: Path, tmp_path: Path) -> None:
    async with serving(config(folder, timeout="60s"), tmp_path) as served:
        n_first, _ = await score(served, LONG)
        assert await metric(served, "kvatlas_tokenizer_cached_tokens_total") == 0
        n_second, _ = await score(served, LONG + "and one more line\n")
        cached = await metric(served, "kvatlas_tokenizer_cached_tokens_total")
        encoded = await metric(served, "kvatlas_tokenizer_encoded_tokens_total")
        assert n_second > n_first > cached > 0.99 * n_first
        assert cached + encoded == n_first + n_second
        assert await metric(served, "kvatlas_tokenizer_segmented") == 1
        assert await metric(served, "kvatlas_tokenizer_native") == 1
        assert await metric(served, "kvatlas_tokenizer_cache_bytes") > len(LONG)
        assert await metric(served, "kvatlas_tokenizer_encode_seconds_total") > 0


@pytest.mark.slow
async def test_prompt_is_scored_without_prefix_when_the_time_is_up_and_with_it_once_it_is_known(
    folder: Path, tmp_path: Path
) -> None:
    async with serving(config(folder, timeout="1ms", threads=1), tmp_path) as served:
        # Each is read at once and encoded in about 12 ms. Those that wait for the only thread are late, however fast it is.
        rounds = count()
        late: list[str] = []

        async def some_are_late() -> bool:
            texts = [
                f"{next(rounds)} {LONG[start : start + 60_000]}" for start in range(0, len(LONG), 60_000)
            ]
            answers = await asyncio.gather(*[score(served, text) for text in texts])
            late.extend(
                text for text, (_, why) in zip(texts, answers, strict=True) if why == "tokenize_timeout"
            )
            return bool(late)

        await until(some_are_late, what="a prompt that takes too long")
        assert await metric(served, "kvatlas_tokenizer_timeouts_total") == len(late)

        async def known() -> bool:
            return (await score(served, late[0]))[1] is None

        await until(known, what="a prefix for the prompt")


@pytest.mark.slow
async def test_changed_tokenizer_is_used_and_a_broken_one_is_not(folder: Path, tmp_path: Path) -> None:
    async with serving(config(folder, reloadInterval="20ms"), tmp_path) as served:
        assert await score(served, "hello world") == (2, None)
        tokenizer = json.loads((folder / "tokenizer.json").read_text())
        bos = "<|endoftext|>"
        tokenizer["post_processor"] = {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": bos, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {bos: {"id": bos, "ids": [0], "tokens": [bos]}},
        }  # fmt: skip
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))

        async def used() -> bool:
            return await score(served, "hello world") == (3, None)

        await until(used, what="the BOS token of the changed tokenizer")
        assert await metric(served, 'kvatlas_tokenizer_reloads_total{outcome="used"}') == 1
        (folder / "tokenizer.json").write_text("{")
        await served.until_metric('kvatlas_tokenizer_reloads_total{outcome="failed"} 1.0')
        assert await score(served, "hello world") == (3, None)
    assert sum("keeping the loaded tokenizer" in line for line in served.log) == 1
    assert sum("tokenizer reloaded: " in line for line in served.log) == 1


@pytest.mark.slow
async def test_other_requests_are_routed_with_their_prefix_while_templates_of_requests_do_harm(
    folder: Path, tmp_path: Path
) -> None:
    model = {"names": ["tiny"], "tokenizer": str(folder), "chat": {"trustRequestTemplate": True}}
    harm = {
        "loop": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "memory": "{{ 'a' | center(99999999999) }}",
        "hang": "{{ ([[0]] * 9999999) | sum(start=[]) | length }}",
    }
    async with gateway(tmp_path, model=model) as gate:

        async def reason(name: str, **fields: str) -> str | None:
            """Return the reason why a chat was routed without prefix."""
            body = {"model": "tiny", "messages": [{"role": "user", "content": name}], **fields}
            request = await gate.post("/v1/chat/completions", body, ("x-request-id", name))
            await request.end()
            decision = await gate.served.get(f"/v1/decisions/{name}")
            return cast("str | None", decision["noPrefixReason"])

        bad = [asyncio.create_task(reason(name, chat_template=harm[name])) for name in harm]
        assert await reason("plain") is None
        assert await asyncio.gather(*bad) == ["template_failed"] * len(harm)
        failed = 'kvatlas_prompts_without_prefix_total{reason="template_failed"}'
        assert await metric(gate.served, failed) == len(harm)

        async def known() -> bool:
            return await reason("good", chat_template="{{ messages[0].content }}") is None

        await until(known, what="the text of a good template")
