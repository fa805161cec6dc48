from __future__ import annotations

import asyncio
import json
import shutil
from array import array
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from kvatlas.app.tokenization_metrics import tokenization_families
from kvatlas.configs.schema import ModelConfig, TokenizationConfig
from kvatlas.configs.units import Duration
from kvatlas.fleet.families import StateCollector
from kvatlas.tokenization.service import Tokenization
from support.waiting import until

PATH = "/v1/completions"


def body(prompt: str) -> bytes:
    return json.dumps({"model": "tiny", "prompt": prompt}).encode()


def figures(tokenization: Tokenization) -> dict[str, float]:
    """Return samples by name and label, without the common prefix."""
    registry = CollectorRegistry()
    registry.register(StateCollector(lambda: tokenization_families([tokenization])))
    return {
        " ".join([sample.name.removeprefix("kvatlas_tokenizer_"), *sample.labels.values()]): sample.value
        for family in registry.collect()
        for sample in family.samples
    }


async def test_figures_tell_what_was_encoded_and_what_was_known(models: dict[str, Path]) -> None:
    model = ModelConfig(names=("tiny",), tokenizer=str(models["tiny"]))
    with closing(Tokenization(model, TokenizationConfig())) as tokenization:
        for prompt in ("hello world", "hello world", "hello"):
            await tokenization.pipeline.prompt(PATH, body(prompt))
        found = figures(tokenization)
    assert found.pop("encode_seconds_total") > 0
    assert found.pop("cache_bytes") > 2 * 128
    assert found == {
        "segmented": 1,
        "native": 1,
        "cached_tokens_total": 2,
        "encoded_tokens_total": 3,
        "timeouts_total": 0,
        "refusals_total": 0,
        "queued_chars": 0,
        "slices_dropped_total": 0,
        "cache_evictions_total": 0,
        "cache_segments": 2,
        "reloads_total used": 0,
        "reloads_total failed": 0,
        "kvatlas_remote_tokenizer_servers_open": 0,
        "kvatlas_remote_tokenizer_cache_bytes": 0,
    }


async def test_figures_are_zero_when_no_tokenizer_is_configured() -> None:
    with closing(Tokenization(ModelConfig(), TokenizationConfig())) as tokenization:
        await tokenization.watch()
        found = figures(tokenization)
    assert set(found.values()) == {0}
    assert not {"segmented", "reloads_total used"} & found.keys()


async def test_limits_are_those_of_the_configuration(models: dict[str, Path]) -> None:
    model = ModelConfig(tokenizer=str(models["tiny"]), max_model_len=100_000)
    config = TokenizationConfig(timeout=Duration(1e-9), cache_mebibytes=1)
    with closing(Tokenization(model, config)) as tokenization:
        text = " word ".join(map(str, range(60_000)))
        late = await tokenization.pipeline.prompt(PATH, body(text))
        assert tokenization.encoder is not None
        tokenization.encoder.tokens(text, add_special_tokens=True)
        found = figures(tokenization)
    assert late.reason == "tokenize_timeout"
    assert found["timeouts_total"] == 1
    assert found["cache_evictions_total"] > 0
    assert found["slices_dropped_total"] > 0
    assert found["cache_bytes"] <= 2**20


@pytest.fixture
def folder(models: dict[str, Path], tmp_path: Path) -> Path:
    """Copy the tiny model."""
    copy = tmp_path / "model"
    copy.mkdir()
    for file in models["tiny"].iterdir():
        shutil.copyfile(file, copy / file.name)
    return copy


@asynccontextmanager
async def watched(folder: Path) -> AsyncGenerator[Tokenization]:
    model = ModelConfig(tokenizer=str(folder))
    with closing(Tokenization(model, TokenizationConfig(reload_interval=Duration(0.01)))) as tokenization:
        watching = asyncio.create_task(tokenization.watch())
        try:
            yield tokenization
        finally:
            watching.cancel()
            await asyncio.wait([watching])


async def test_changed_files_are_used_while_watched(models: dict[str, Path], folder: Path) -> None:
    async with watched(folder) as tokenization:
        shutil.copyfile(models["bos"] / "tokenizer.json", folder / "tokenizer.json")

        async def is_used() -> bool:
            return (await tokenization.pipeline.prompt(PATH, body("hello"))).tokens == array("I", [0, 418])

        await until(is_used, what="the changed tokenizer")
        assert figures(tokenization)["reloads_total used"] == 1


async def test_renderer_is_looked_for_again_when_files_change(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    chat = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]}).encode()
    async with watched(folder) as tokenization:

        async def reason() -> str | None:
            return (await tokenization.pipeline.prompt("/v1/chat/completions", chat)).reason

        assert await reason() is None
        (folder / "config.json").write_text('{"model_type": "gpt_oss"}')
        await until(lambda: tokenization.pipeline.own_renderer is not None, what="the engine's own renderer")
        assert await reason() == "own_renderer"
        (folder / "config.json").write_text("{")
        await until(lambda: "the old setting stays" in caplog.text, what="a warning about the broken file")
        assert await reason() == "own_renderer"
