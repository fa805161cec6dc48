"""Requests to token ids, against what vLLM computed for them.

`vllm_renders.jsonl` holds requests with the ids vLLM 0.32.0 rendered them to; `tests/support/make_renders.py` makes it.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from kvatlas.tokenization.chats.chat import ChatRenderer, ChatTemplate
from kvatlas.tokenization.chats.template_process import TemplateProcess
from kvatlas.tokenization.encoding.encoding_pool import EncodingPool
from kvatlas.tokenization.encoding.tokenizer import ModelTokenizer, load_tokenizer
from kvatlas.tokenization.errors import ModelMissingError
from kvatlas.tokenization.eventual import Known, Later
from kvatlas.tokenization.model import NoPrefixReason
from kvatlas.tokenization.pipeline import PromptPipeline
from kvatlas.tokenization.reading import Reader
from kvatlas.tokenization.requests.request import parse_body
from support.tree import ROOT

HERE = Path(__file__).parent
GOLDEN = ROOT / "tests" / "golden" / "vllm-0.32.0"
CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"


def lines(file: Path) -> Iterator[dict[str, Any]]:
    return (json.loads(line) for line in file.read_text().splitlines())


RECORDED = [
    pytest.param(line, id=f"{file.stem}-line{number}")
    for file in sorted(GOLDEN.glob("run*_requests.jsonl"))
    for number, line in enumerate(lines(file), 1)
    if line.get("tokens")
]
RENDERS = [pytest.param(line, id=line["id"]) for line in lines(HERE / "vllm_renders.jsonl")]
RENDERED = [case for case in RENDERS if "media" not in cast("dict[str, Any]", case.values[0])]
WITH_MEDIA = [case for case in RENDERS if "media" in cast("dict[str, Any]", case.values[0])]


def encoded(body: object) -> bytes:
    return json.dumps(body, ensure_ascii=False).encode()


@pytest.fixture(scope="module")
def tokenizers(models: dict[str, Path]) -> dict[str, ModelTokenizer]:
    return {name: load_tokenizer(folder) for name, folder in models.items()}


@pytest.fixture
def template_process() -> Iterator[TemplateProcess]:
    """With time for a loaded machine."""
    with closing(TemplateProcess(render_s=60, wait_s=60)) as process:
        yield process


@pytest.fixture(scope="module")
def tiny(tokenizers: dict[str, ModelTokenizer]) -> ModelTokenizer:
    return tokenizers["tiny"]


@pytest.mark.parametrize(
    ("file", "n_lines"),
    [("run1", 32), ("run3", 19), ("run4", 15), ("run5", 15), ("run6", 6), ("run7", 15)],
)
def test_recordings_hold_requests_with_tokens_when_read(file: str, n_lines: int) -> None:
    assert sum(str(case.id).startswith(f"{file}_requests-") for case in RECORDED) == n_lines


@pytest.mark.parametrize("line", RECORDED)
async def test_ids_are_the_engines_when_a_recorded_request_is_tokenized(
    tiny: ModelTokenizer, line: dict[str, Any]
) -> None:
    pipeline = PromptPipeline(tiny, model_names=("tiny",))
    prompt = await pipeline.prompt(line["path"], encoded(line["body"]))
    if "prompt_logprobs" in line["body"]:
        assert (prompt.tokens, prompt.reason) == (None, NoPrefixReason.PROMPT_LOGPROBS)
        return  # the engine reused nothing for it
    assert prompt.tokens == array("I", line["tokens"])
    assert prompt.cache_salt == line["body"].get("cache_salt")
    assert prompt.lora == (None if line["body"]["model"] == "tiny" else line["body"]["model"])


@pytest.mark.parametrize("line", RENDERED)
async def test_ids_are_the_engines_when_a_request_uses_this_feature(
    tokenizers: dict[str, ModelTokenizer], template_process: TemplateProcess, line: dict[str, Any]
) -> None:
    pipeline = PromptPipeline(tokenizers[line["model"]], template_process=template_process)
    prompt = await pipeline.prompt(line["path"], encoded(line["body"]))
    assert (prompt.tokens, prompt.cut, prompt.detail) == (array("I", line["tokens"]), None, "")


@pytest.mark.parametrize("line", WITH_MEDIA)
async def test_ids_end_before_the_first_image_when_a_chat_has_some(
    tokenizers: dict[str, ModelTokenizer], line: dict[str, Any]
) -> None:
    prompt = await PromptPipeline(tokenizers[line["model"]]).prompt(line["path"], encoded(line["body"]))
    assert prompt.tokens is not None
    assert prompt.tokens == array("I", line["tokens"][: len(prompt.tokens)])
    assert (prompt.cut, prompt.reason) == (NoPrefixReason.MEDIA, None)
    first = min(offset for _, offset, _ in line["media"])
    if line["model"] == "vision":
        assert len(prompt.tokens) == first
    else:  # the engine puts images in front of the message's text, and the text is not looked at further
        assert 0 < len(prompt.tokens) <= first


MESSAGES = [{"role": "user", "content": "hi"}]
SURROGATE = [
    {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": '{"a": "\\ud800"}'}}]}
]


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        pytest.param("/v1/models", {}, "unknown_path", id="path"),
        pytest.param(
            CHAT, {"messages": MESSAGES, "chat_template": "x"}, "request_template", id="own_template"
        ),
        pytest.param(
            CHAT,
            {"messages": MESSAGES, "chat_template_kwargs": {"chat_template": "x"}},
            "request_template",
            id="own_template_as_variable",
        ),
        pytest.param(
            CHAT,
            {"messages": MESSAGES, "continue_final_message": True},
            "template_failed",
            id="contradiction",
        ),
        pytest.param("/v1/responses", {"input": []}, "template_failed", id="empty_conversation"),
    ],
)
async def test_reason_is_given_when_there_is_no_prefix(
    tiny: ModelTokenizer, path: str, body: dict[str, Any], reason: str
) -> None:
    prompt = await PromptPipeline(tiny).prompt(path, encoded({"model": "m", **body}))
    assert (prompt.tokens, prompt.reason) == (None, reason)
    assert prompt.detail


async def test_reason_is_encode_failed_when_text_is_no_unicode(
    tiny: ModelTokenizer, template_process: TemplateProcess
) -> None:
    pipeline = PromptPipeline(tiny, template_process=template_process)
    body = {
        "model": "m",
        "messages": SURROGATE,
        "chat_template": "{{ messages[0].tool_calls[0].function.arguments.a }}",
    }
    prompt = await pipeline.prompt(CHAT, encoded(body))
    assert (prompt.tokens, prompt.reason) == (None, "encode_failed")


LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


async def test_reason_is_template_failed_when_a_template_does_not_end(
    tiny: ModelTokenizer, template_process: TemplateProcess
) -> None:
    """Of the request, and of the model, in which case a loop depends on what the client sends."""
    request = encoded({"model": "m", "messages": MESSAGES, "chat_template": LOOP})
    foreign = PromptPipeline(tiny, template_process=template_process)
    reader = Reader(timeout_s=30)
    loop = "{% for a in messages %}" * 4 + "{% endfor %}" * 4
    own = PromptPipeline(replace(tiny, chat=ChatRenderer({"default": ChatTemplate(loop)}, {})), reader=reader)
    for pipeline, body in ((foreign, request), (own, encoded({"model": "m", "messages": MESSAGES * 500}))):
        prompt = await pipeline.prompt(CHAT, body)
        assert (prompt.tokens, prompt.reason) == (None, "template_failed")
        assert prompt.detail == "chat template took longer than 0.25 s in line 1"
    good = await foreign.prompt(CHAT, encoded({"model": "m", "messages": MESSAGES, "chat_template": "hello"}))
    assert good.tokens == array("I", [418])
    reader.close()


async def test_reason_is_no_chat_template_when_the_tokenizer_is_one_file(models: dict[str, Path]) -> None:
    pipeline = PromptPipeline(load_tokenizer(models["tiny"] / "tokenizer.json"))
    chat = await pipeline.prompt(CHAT, encoded({"model": "m", "messages": MESSAGES}))
    text = await pipeline.prompt(TEXT, encoded({"model": "m", "prompt": "hello world"}))
    assert (chat.tokens, chat.reason) == (None, "no_chat_template")
    assert text.tokens == array("I", [418, 390])


@pytest.mark.parametrize(
    ("path", "body", "tokens"),
    [
        pytest.param(TEXT, {"prompt": "hello"}, None, id="text"),
        pytest.param(CHAT, {"messages": MESSAGES}, None, id="chat"),
        pytest.param(TEXT, {"prompt": [3, 1, 2]}, [3, 1, 2], id="token_ids"),
        pytest.param(TEXT, {"prompt": [[3, 1], [2]]}, [3, 1], id="lists_of_token_ids"),
    ],
)
async def test_only_given_ids_count_when_no_tokenizer_is_configured(
    path: str, body: dict[str, Any], tokens: list[int] | None
) -> None:
    prompt = await PromptPipeline(None).prompt(path, encoded({"model": "m", **body}))
    if tokens is None:
        assert (prompt.tokens, prompt.reason) == (None, "no_tokenizer")
    else:
        assert (prompt.tokens, prompt.reason) == (array("I", tokens), None)


@pytest.mark.parametrize(
    ("names", "model", "lora"),
    [
        pytest.param(("base", "alias"), "base", None, id="name"),
        pytest.param(("base", "alias"), "alias", None, id="alias"),
        pytest.param(("base", "alias"), "adapter", "adapter", id="other_name"),
        pytest.param((), "anything", None, id="no_names_configured"),
        pytest.param(("base", "alias"), "base:adapter", "adapter", id="name_and_adapter"),
        pytest.param(("base", "base:8b"), "base:8b", None, id="name_with_colon"),
        *(
            pytest.param(("b", *names), "b:8:9:adapter", "adapter", id=f"longest_of_{len(names) + 1}_names")
            for names in (("b:8:9",), ("b:8", "b:8:9"), ("b:8:9", "b:8", "b:8:9:x", "b:8:9:y"))
        ),
        pytest.param(("base",), "other:adapter", "other:adapter", id="other_name_and_adapter"),
    ],
)
async def test_lora_is_the_requested_name_when_it_is_no_configured_one(
    names: tuple[str, ...], model: str, lora: str | None
) -> None:
    prompt = await PromptPipeline(None, model_names=names).prompt(
        TEXT, encoded({"model": model, "prompt": [1]})
    )
    assert (prompt.model, prompt.lora) == (model, lora)


async def test_lora_is_the_one_named_beside_the_model_when_there_is_one() -> None:
    prompt = await PromptPipeline(None, model_names=("base",)).prompt(
        "/generate", encoded({"input_ids": [1], "lora_path": "adapter"})
    )
    assert (prompt.model, prompt.lora) == ("", "adapter")


async def test_lora_is_none_when_the_path_is_unknown() -> None:
    prompt = await PromptPipeline(None, model_names=("base",)).prompt("/metrics", b"")
    assert (prompt.model, prompt.lora) == ("", None)


async def test_request_fields_reach_the_prompt(tiny: ModelTokenizer) -> None:
    body = {"model": "m", "prompt": ["hello", "world"], "stream": True, "cache_salt": "s"}
    prompt = await PromptPipeline(tiny).prompt(TEXT, encoded(body))
    assert (prompt.tokens, prompt.n_prompts, prompt.extent) == (array("I", [418]), 2, 2.0)
    assert (prompt.stream, prompt.cache_salt) == (True, "s")


async def test_extent_is_one_when_the_length_of_the_whole_body_stands_for_the_prompts(
    tiny: ModelTokenizer,
) -> None:
    body = encoded({"model": "m", "prompt": ["hello", "world"], "prompt_logprobs": 1, "echo": True})
    prompt = await PromptPipeline(tiny).prompt(TEXT, body)
    assert (prompt.tokens, prompt.n_prompts, prompt.extent) == (None, 2, 1.0)
    assert prompt.n_estimated > 0


async def test_request_error_is_raised_when_the_body_is_refused(tiny: ModelTokenizer) -> None:
    with pytest.raises(ModelMissingError):
        await PromptPipeline(tiny).prompt(TEXT, b'{"prompt": "hello world"}')


@pytest.mark.parametrize("path", [TEXT, CHAT])
async def test_reason_is_tokenize_timeout_when_the_time_is_up(
    tokenizers: dict[str, ModelTokenizer], path: str
) -> None:
    text = " ".join(map(str, range(50_000)))
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    messages = [{"role": "user", "content": [{"type": "text", "text": text}, image]}]
    with closing(EncodingPool(timeout_s=0)) as pool:
        prompt = await PromptPipeline(tokenizers["vision"], pool=pool).prompt(
            path, encoded({"model": "m", "prompt": text, "messages": messages})
        )
    assert (prompt.tokens, prompt.reason) == (None, "tokenize_timeout")


async def test_ids_are_those_of_the_new_tokenizer_when_it_is_replaced(
    tokenizers: dict[str, ModelTokenizer],
) -> None:
    pipeline = PromptPipeline(tokenizers["tiny"])
    body = encoded({"model": "m", "prompt": "hello world"})
    before = await pipeline.prompt(TEXT, body)
    pipeline.tokenizer = tokenizers["bos"]
    after = await pipeline.prompt(TEXT, body)
    assert (before.tokens, after.tokens) == (array("I", [418, 390]), array("I", [0, 418, 390]))


async def test_chat_is_rendered_in_the_thread_when_its_template_is_slow(
    tiny: ModelTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = "{% for a in range(2000) %}{% endfor %}hello"
    reader = Reader(timeout_s=30)
    pipeline = PromptPipeline(
        replace(tiny, chat=ChatRenderer({"default": ChatTemplate(loop)}, {})), reader=reader
    )
    request = parse_body(CHAT, encoded({"model": "m", "messages": MESSAGES}))
    at_once = pipeline.tokenize(request)
    assert isinstance(at_once, Known)

    monkeypatch.setattr("kvatlas.tokenization.pipeline.INLINE_RENDER_S", 1e-9)
    later = pipeline.tokenize(request)
    assert isinstance(later, Later)
    assert (await later).tokens == at_once.value.tokens == array("I", [418])
    reader.close()
