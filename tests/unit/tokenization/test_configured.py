from __future__ import annotations

import asyncio
import json
import shutil
from array import array
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvatlas.configs.schema import ModelConfig, RemoteTokenizerConfig, TokenizationConfig
from kvatlas.tokenization.configured import make_remote
from kvatlas.tokenization.errors import TokenizerLoadError
from kvatlas.tokenization.model import Prompt
from kvatlas.tokenization.pipeline import PromptPipeline
from kvatlas.tokenization.remote.client import RemoteTokenizer
from kvatlas.tokenization.remote.wire import RemoteApi
from kvatlas.tokenization.service import Tokenization

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HELLO = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "f"}}


def configured(**keys: Any) -> ModelConfig:
    """Make a `model` section with these keys."""
    return msgspec.convert(keys, ModelConfig)


def ignore(_outcome: str, _seconds: float) -> None:
    """Ignore the outcome."""


def remote(**keys: Any) -> RemoteTokenizer | None:
    config = msgspec.convert(keys, RemoteTokenizerConfig)
    return make_remote(config, endpoints=lambda: ["http://a"], on_outcome=ignore)


def pipeline_of(model: ModelConfig, asked: RemoteTokenizer | None = None) -> PromptPipeline:
    with closing(Tokenization(model, TokenizationConfig(), remote=asked)) as tokenization:
        return tokenization.pipeline


def prompt_of(pipeline: PromptPipeline, path: str = CHAT, **fields: Any) -> Prompt:
    body = {"model": "m", "messages": [HELLO], "prompt": "hello", **fields}
    return asyncio.run(pipeline.prompt(path, json.dumps(body).encode()))


@pytest.fixture
def folder(models: dict[str, Path], tmp_path: Path) -> Path:
    """Copy the tiny model."""
    shutil.copytree(models["tiny"], tmp_path / "model")
    return tmp_path / "model"


def gpt_oss(folder: Path) -> Path:
    (folder / "config.json").unlink()
    (folder / "config.json").write_text('{"model_type": "gpt_oss"}')
    return folder


def test_chats_have_no_prefix_when_the_engine_renders_them_itself(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pipeline = pipeline_of(configured(tokenizer=str(gpt_oss(folder))))
    prompt = prompt_of(pipeline)
    assert (prompt.tokens, prompt.reason, "gpt_oss" in prompt.detail) == (None, "own_renderer", True)
    assert prompt_of(pipeline, TEXT).tokens == array("I", [418])
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "model.remoteTokenizer" in warning
    assert "model.chat.renderer" in warning


def test_texts_have_no_prefix_either_when_the_engine_has_its_own_tokenizer(folder: Path) -> None:
    (folder / "tekken.json").write_text("{}")
    (folder / "tokenizer.json").unlink()
    pipeline = pipeline_of(configured(tokenizer=str(folder)))
    assert [prompt_of(pipeline, path).reason for path in (CHAT, TEXT)] == ["own_renderer"] * 2


@pytest.mark.parametrize(
    ("renderer", "reason"), [("auto", "own_renderer"), ("engine", "own_renderer"), ("template", None)]
)
def test_renderer_is_the_configured_one(folder: Path, renderer: str, reason: str | None) -> None:
    config = configured(tokenizer=str(gpt_oss(folder)), chat={"renderer": renderer})
    assert prompt_of(pipeline_of(config)).reason == reason


def test_renderer_may_be_the_engine_for_any_model(models: dict[str, Path]) -> None:
    config = configured(tokenizer=str(models["tiny"]), chat={"renderer": "engine"})
    assert prompt_of(pipeline_of(config)).reason == "own_renderer"


def test_warning_names_the_missing_configuration_when_the_renderer_is_to_be_detected(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "config.json").unlink()
    assert prompt_of(pipeline_of(configured(tokenizer=str(folder)))).tokens is not None
    assert "has no config.json" in caplog.text


@pytest.mark.parametrize("name", ["", "tokenizer.json"])
def test_nothing_is_logged_when_there_is_no_folder(
    folder: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    pipeline_of(configured(tokenizer=str(folder / name) if name else ""))
    assert caplog.text == ""


def test_start_is_refused_when_the_engines_tokenize_would_give_other_ids(folder: Path) -> None:
    config = configured(tokenizer=str(gpt_oss(folder)))
    with pytest.raises(TokenizerLoadError, match=r"set model\.remoteTokenizer\.api to render"):
        pipeline_of(config, remote(url="endpoints", api="tokenize"))
    pipeline_of(config, remote(url="endpoints", api="render"))


@pytest.mark.parametrize(
    ("chat", "fields", "text"),
    [
        pytest.param({"template": "own.jinja"}, {}, "own [hi]", id="template"),
        pytest.param({"template": "own.jinja"}, {"tools": [TOOL]}, "own [hi]", id="template_with_tools"),
        pytest.param({"templateKwargs": {"greeting": "yo"}}, {}, "default None [hi] yo", id="variable"),
        pytest.param(
            {"templateKwargs": {"greeting": "yo"}},
            {"chat_template_kwargs": {"greeting": "hey"}},
            "default None [hi] hey",
            id="variable_of_the_request",
        ),
        pytest.param(
            {"templateKwargs": {"greeting": "yo"}},
            {"chat_template_kwargs": {"greeting": "auto"}},
            "default None [hi] yo",
            id="variable_not_given",
        ),
        pytest.param(
            {"contentFormat": "openai"}, {}, "default None [[{'type': 'text', 'text': 'hi'}]] ", id="format"
        ),
        pytest.param(
            {"excludeToolsWhenToolChoiceNone": True},
            {"tools": [TOOL], "tool_choice": "none"},
            "default None [hi] ",
            id="hidden_tools",
        ),
        pytest.param(
            {}, {"tools": [TOOL], "tool_choice": "none"}, "default 1 [hi] ", id="forbidden_tools_are_shown"
        ),
        pytest.param(
            {"excludeToolsWhenToolChoiceNone": True},
            {"tools": [TOOL], "tool_choice": "auto"},
            "default 1 [hi] ",
            id="allowed_tools",
        ),
    ],
)
def test_chats_are_rendered_as_the_engine_was_told(
    folder: Path, tmp_path: Path, chat: dict[str, Any], fields: dict[str, Any], text: str
) -> None:
    (folder / "chat_template.jinja").unlink()
    (folder / "chat_template.jinja").write_text(
        "default {{ tools | length if tools else none }} [{{ messages[0].content }}] {{ greeting }}"
    )
    (tmp_path / "own.jinja").write_text("own [{{ messages[0].content }}]")
    if "template" in chat:
        chat = {"template": str(tmp_path / chat["template"])}
    pipeline = pipeline_of(configured(tokenizer=str(folder), chat=chat))
    expected = prompt_of(pipeline, TEXT, prompt=text)
    assert prompt_of(pipeline, **fields).tokens == expected.tokens


@pytest.mark.parametrize(
    ("trusted", "reason"),
    [pytest.param(True, None, id="trusted"), pytest.param(False, "request_template", id="not")],
)
def test_template_of_a_request_is_rendered_when_the_engine_trusts_it(
    folder: Path, trusted: bool, reason: str | None
) -> None:
    model = configured(tokenizer=str(folder), chat={"trustRequestTemplate": trusted})
    with closing(Tokenization(model, TokenizationConfig())) as tokenization:
        tries = (
            prompt_of(tokenization.pipeline, chat_template="{{ messages[0].content }}lo") for _ in range(100)
        )
        found = next(each for each in tries if each.reason != "template_failed")  # its process may start late
        expected = prompt_of(tokenization.pipeline, TEXT, prompt="hilo")
    assert found.reason == reason
    assert found.tokens == (expected.tokens if trusted else None)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        pytest.param("{% if", "of model.chat.template", id="broken"),
        pytest.param(None, "cannot be read", id="missing"),
    ],
)
def test_load_error_names_the_template_when_it_cannot_be_used(
    folder: Path, tmp_path: Path, source: str | None, message: str
) -> None:
    file = tmp_path / "own.jinja"
    if source is not None:
        file.write_text(source)
    with pytest.raises(TokenizerLoadError, match=message):
        pipeline_of(configured(tokenizer=str(folder), chat={"template": str(file)}))


def test_there_is_no_remote_client_when_no_url_is_configured() -> None:
    assert remote() is None


async def test_options_are_those_of_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("secret\n")
    made = remote(
        url="http://render:8000/",
        api="tokenize",
        media=True,
        maxConcurrent=3,
        cacheMebibytes=2,
        failures=4,
        apiKeyFile=str(tmp_path / "key"),
    )
    assert made is not None
    options = made.options
    assert (options.api, options.media, options.max_concurrent) == (RemoteApi.TOKENIZE, True, 3)
    assert (options.cache_bytes, options.failures, options.api_key) == (2 * 2**20, 4, "secret")
    assert (options.timeout_s, options.cooldown_s) == (0.3, 5.0)
    assert "secret" not in repr(options)
    assert list(made.targets()) == ["http://render:8000"]


async def test_requests_go_to_the_endpoints_when_they_are_configured() -> None:
    made = remote(url="endpoints")
    assert made is not None
    assert list(made.targets()) == ["http://a"]


def test_load_error_is_raised_when_the_key_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(TokenizerLoadError, match="nowhere cannot be read"):
        remote(url="endpoints", apiKeyFile=str(tmp_path / "nowhere"))
