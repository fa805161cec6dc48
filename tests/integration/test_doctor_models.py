"""The doctor's checks of tokenizers, topics and adapters, on a running process and on a file alone."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from kvatlas.app.cli.main import app as command_line
from support.engine_metrics import metrics_of
from support.fleets import make_endpoint
from support.local_process import PROMPT, local_process
from support.publishing import stored
from support.recording import Frame, player, send
from support.scraping import metrics
from support.tokenizer_families import FAMILIES
from support.waiting import until

SERVES_LORA = metrics(1).decode() + (
    'vllm:lora_requests_info{max_lora="4",running_lora_adapters="sql",waiting_lora_adapters=""} 1.0\n'
)


def stored_event(*, topic: str = "kv@10.0.0.1@m", **changed: object) -> Frame:
    """Return the event of a stored prompt, with some fields changed."""
    name, number, payload = stored(0, PROMPT, topic=topic).parts
    timestamp, (event,), rank = msgspec.msgpack.decode(payload)
    return Frame(0.0, "", (name, number, msgspec.msgpack.encode([timestamp, [event | changed], rank])))


@pytest.mark.parametrize(
    ("frame", "sections", "check", "state", "evidence"),
    [
        pytest.param(
            stored_event(), {"model": {"names": ["m", "alias"]}}, "topics-fit", "ok", "a: publishes as model 'm'", id="model"
        ),
        pytest.param(
            stored_event(topic="kv@h@org/m@2"), {"model": {"names": ["qwen3", "m"]}}, "topics-fit", "warn",
            "a: publishes as model 'org/m@2', configured are 'm', 'qwen3'", id="other_model",
        ),
        pytest.param(stored_event(topic="kv"), {"model": {"names": ["m"]}}, "topics-fit", "unknown", "nothing to see yet", id="no_topic"),
        pytest.param(stored_event(), {}, "topics-fit", "unknown", "nothing to see yet", id="no_names"),
        pytest.param(stored_event(lora_name="sql"), {}, "adapters-named", "ok", "a: has blocks of sql", id="adapter"),
        pytest.param(
            stored_event(lora_id=3), {}, "adapters-named", "warn", "a: its events name adapters by number alone: #3", id="number"
        ),
        pytest.param(
            stored_event(lora_name="sql"), {"models": [{"names": ["m"], "adapters": ["code"]}, {"names": ["n"]}]},
            "adapters-named", "warn", "a: has blocks of sql, which no model lists", id="unlisted",
        ),
        pytest.param(
            stored_event(lora_name="sql"), {"models": [{"names": ["m"], "adapters": ["sql"]}, {"names": ["n"]}]},
            "adapters-named", "ok", "a: has blocks of sql", id="listed",
        ),
        pytest.param(
            stored_event(), {"model": {"adapters": ["code"]}}, "adapters-named", "unknown",
            "no endpoint has shown code yet", id="unseen",
        ),
    ],
)  # fmt: skip
async def test_models_are_checked_against_events(
    frame: Frame, sections: dict[str, Any], check: str, state: str, evidence: str
) -> None:
    async with (
        player() as engine,
        local_process(make_endpoint("a", events=engine.events), **sections) as process,
    ):

        async def held() -> bool:
            await send(engine.pub, frame.parts)
            return bool(process.app.fleet.atlas.occupancy("a")[0].residencies)

        await until(held, what="blocks in the index")
        found = (await process.checks())[check]
    assert (found["state"], found["evidence"]) == (state, [evidence])
    assert bool(found["remedies"]) == (state == "warn")


async def test_adapter_is_reported_when_events_do_not_name_it() -> None:
    async with (
        metrics_of(SERVES_LORA) as (url, _),
        player() as engine,
        local_process(make_endpoint("a", events=engine.events, metrics=url)) as process,
    ):
        found = await process.until_state("adapters-named", "warn")
    assert found["evidence"] == ["a: serves sql, and its events name no adapter"]
    assert "lora_name" in found["remedies"][0]


@pytest.mark.parametrize(
    ("family", "state"),
    [pytest.param("text_twice", "warn", id="not"), pytest.param("byte_level", "ok", id="segmented")],
)
async def test_tokenizer_is_reported_when_its_texts_cannot_be_segmented(
    family: str, state: str, tmp_path: Path
) -> None:
    FAMILIES[family]().save(str(tmp_path / "tokenizer.json"))
    async with local_process(make_endpoint("a"), model={"tokenizer": str(tmp_path)}) as process:
        found = (await process.checks())["texts-segmented"]
    assert found["state"] == state
    assert bool(found["remedies"]) == (state == "warn")


def whole(folder: Path, model: Path) -> None:
    shutil.copytree(model, folder, dirs_exist_ok=True)


def without(*names: str) -> Callable[[Path, Path], None]:
    def copy(folder: Path, model: Path) -> None:
        whole(folder, model)
        for name in names:
            (folder / name).unlink()

    return copy


def broken(folder: Path, model: Path) -> None:
    whole(folder, model)
    (folder / "tokenizer.json").write_text("{")


def other_renderer(folder: Path, model: Path) -> None:
    whole(folder, model)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["DeepseekV32ForCausalLM"]}))


@pytest.mark.parametrize(
    ("prepare", "state", "evidence"),
    [
        pytest.param(whole, "ok", " tokens, loaded in ", id="whole"),
        pytest.param(without("tokenizer.json"), "fail", " has no tokenizer.json (it has ", id="no_file"),
        pytest.param(broken, "fail", "tokenizer.json is not a readable tokenizer", id="broken"),
        pytest.param(
            without("chat_template.jinja", "tokenizer_config.json"),
            "warn",
            " has no chat template",
            id="no_template",
        ),
        pytest.param(
            other_renderer,
            "warn",
            "the engine writes chats for DeepSeek V3.2 with its own code",
            id="own_renderer",
        ),
    ],
)
async def test_tokenizer_of_a_file_is_loaded(
    prepare: Callable[[Path, Path], None], state: str, evidence: str, golden: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    prepare(folder, golden / "tiny-model")
    file = tmp_path / "kvatlas.yaml"
    head = {
        "apiVersion": "kvatlas/v1",
        "kind": "KVAtlasConfig",
        "model": {"names": ["m"], "tokenizer": str(folder)},
    }
    file.write_bytes(msgspec.yaml.encode(head))

    result = await asyncio.to_thread(
        CliRunner().invoke, command_line, ["doctor", "--config", str(file), "--json"]
    )

    checks = {check["name"]: check for check in json.loads(result.stdout)["checks"]}
    found = checks["tokenizer-there"]
    assert (found["state"], len(found["evidence"])) == (state, 1)
    assert evidence in found["evidence"][0]
    assert bool(found["remedies"]) == (state != "ok")
