"""Random bodies on every path."""

from __future__ import annotations

import json
from array import array
from contextlib import closing, suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.tokenization.chats.chat import ChatRenderer, ChatTemplate
from kvatlas.tokenization.encoding.byte_form import estimated_tokens
from kvatlas.tokenization.encoding.tokenizer import ModelTokenizer, load_tokenizer
from kvatlas.tokenization.errors import RequestError
from kvatlas.tokenization.pipeline import PromptPipeline
from kvatlas.tokenization.reading import Reader
from kvatlas.tokenization.remote.wire import RemoteApi, remote_request
from kvatlas.tokenization.requests.request import parse_body
from support.models import STRICT_TEMPLATE, TINY, VISION_TEMPLATE

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


Anything = st.SearchStrategy[object]


def mostly(value: Anything) -> Anything:
    """Draw `value`, or in one of fifty cases any JSON."""
    return st.integers(0, 49).flatmap(lambda chance: value if chance else JSON)


def fields(needed: dict[str, Anything], **more: Anything) -> Anything:
    """Draw objects with the needed fields and some of the others."""
    return st.fixed_dictionaries(
        {name: mostly(value) for name, value in needed.items()},
        optional={name: mostly(value) for name, value in more.items()},
    )


def some(value: Anything) -> Anything:
    return st.lists(value, min_size=1, max_size=3)


WORDS = st.text(max_size=8)
IDS = some(st.integers(0, 99) | st.sampled_from([0, 2**32 - 1, 2**32, -1]))
TOOL_CHANGE = fields(
    {}, name=st.sampled_from("fg"), definition=fields({"name": st.just("f"), "input_schema": JSON})
)
PART = st.one_of(
    fields(
        {"type": st.sampled_from(["text", "input_text", "output_text", "refusal"]), "text": WORDS},
        refusal=WORDS,
    ),
    fields({"type": st.just("thinking"), "thinking": WORDS}),
    fields(
        {"type": st.sampled_from(["image_url", "image", "input_audio"])},
        image_url=JSON,
        source=JSON,
        uuid=WORDS,
    ),
    fields({"type": st.just("tool_reference"), "name": WORDS}),
    fields({"type": st.just("tool_use"), "name": WORDS, "id": WORDS}, input=fields({}, a=JSON)),
    fields(
        {"type": st.just("tool_result"), "tool_use_id": WORDS},
        content=WORDS | some(fields({}, type=st.just("text"), text=WORDS)),
    ),
    fields(
        {"type": st.sampled_from(["tool_addition", "tool_removal", "redacted_thinking"])}, tool=TOOL_CHANGE
    ),
)
CONTENT = WORDS | some(PART)
CALL = fields(
    {"function": fields({"name": st.just("f")}, arguments=st.just('{"a": 1}') | WORDS)},
    id=WORDS,
    type=st.just("function"),
)
MESSAGE = fields(
    {"role": st.sampled_from(["system", "developer", "user", "assistant", "tool"])},
    content=CONTENT,
    tool_calls=some(CALL),
    name=WORDS,
    tool_call_id=WORDS,
    reasoning=WORDS,
    reasoning_content=WORDS,
    tools=JSON,
)
ITEM = st.one_of(
    fields(
        {"role": st.sampled_from(["user", "assistant"]), "content": CONTENT}, status=st.just("in_progress")
    ),
    fields(
        {"type": st.just("function_call"), "call_id": WORDS, "name": WORDS, "arguments": WORDS},
        namespace=WORDS,
    ),
    fields({"type": st.just("custom_tool_call"), "call_id": WORDS, "name": WORDS}, input=WORDS),
    fields({"type": st.just("function_call_output"), "call_id": WORDS, "output": CONTENT}),
    fields({"type": st.just("reasoning")}, content=some(PART), summary=some(PART), encrypted_content=WORDS),
)
TURN = fields({"role": st.sampled_from(["system", "user", "assistant"]), "content": CONTENT})
COMMON: dict[str, Anything] = {
    "cache_salt": WORDS,
    "stream": st.booleans(),
    "chat_template_kwargs": fields(
        {}, enable_thinking=st.booleans(), chat_template=WORDS, tools=JSON, documents=JSON
    ),
    "kv_transfer_params": fields({}, prompt_token_ids=IDS),
    "add_special_tokens": st.booleans(),
    "truncate_prompt_tokens": st.integers(-2, 4),
    "truncation_side": st.sampled_from(["left", "right"]),
    "tool_choice": st.just("none") | fields({"type": st.just("none")}),
}
CHAT: dict[str, Anything] = {
    **COMMON,
    "tools": some(fields({"function": fields({"name": st.just("f")}, parameters=JSON)})),
    "documents": some(fields({}, text=WORDS)),
    "reasoning_effort": st.sampled_from(["none", "low"]),
    "continue_final_message": st.booleans(),
    "add_generation_prompt": st.booleans(),
    "echo": st.booleans(),
}
TEXTS = WORDS | IDS | some(WORDS) | some(IDS)
PLACE = st.fixed_dictionaries({"offset": st.integers(-1, 3), "length": st.integers(-1, 3)})
TOOL = fields(
    {"name": st.just("f"), "input_schema": JSON}, type=st.sampled_from(["function", "custom", "namespace"])
)
MODEL: dict[str, Anything] = {"model": st.just("m")}
BODIES = {
    "/chat/completions": fields({**MODEL, "messages": some(MESSAGE)}, **CHAT),
    "/chat/completions/batch": fields({**MODEL, "messages": some(some(MESSAGE))}, **CHAT),
    "/completions": fields({**MODEL, "prompt": TEXTS}, suffix=WORDS, prompt_embeds=WORDS, **COMMON),
    "/embeddings": fields(
        {**MODEL, "input": TEXTS | some(MESSAGE) | some(some(MESSAGE))}, padding=st.just("max_length"), **CHAT
    ),
    "/responses": fields(
        {**MODEL, "input": WORDS | some(ITEM)},
        instructions=WORDS,
        reasoning=fields({}, effort=WORDS),
        truncation=st.just("auto"),
        **{**COMMON, "tools": some(TOOL)},
    ),
    "/v1/messages": fields(
        {**MODEL, "messages": some(TURN)},
        system=CONTENT,
        thinking=fields({"type": st.just("disabled")}),
        output_config=fields({"effort": st.just("low")}),
        **{**COMMON, "tools": some(TOOL), "tool_choice": fields({"type": st.just("none")})},
    ),
    "/inference/v1/generate": fields(
        {"token_ids": IDS},
        features=fields(
            {"mm_hashes": fields({"image": some(WORDS)}), "mm_placeholders": fields({"image": some(PLACE)})}
        ),
        **COMMON,
    ),
    "/generate": fields(
        {}, text=WORDS | some(WORDS), input_ids=IDS | some(IDS), lora_path=WORDS | some(WORDS)
    ),
    "/tokenize": JSON,
    "/odd": JSON,
}
REQUESTS = st.sampled_from(sorted(BODIES)).flatmap(
    lambda path: st.tuples(st.just(path), mostly(BODIES[path]))
)


@pytest.fixture(scope="module")
def tokenizers() -> list[ModelTokenizer | None]:
    """Load none, and those with templates that expect different forms of messages."""
    tiny = load_tokenizer(TINY)
    tokenizers: list[ModelTokenizer | None] = [None, tiny]
    for source in (VISION_TEMPLATE, STRICT_TEMPLATE):
        chat = ChatRenderer(templates={"default": ChatTemplate(source)}, special_tokens={})
        tokenizers.append(replace(tiny, chat=chat))
    return tokenizers


@given(path=st.sampled_from(sorted(BODIES)), body=st.binary(max_size=64))
def test_only_request_errors_are_raised_when_a_body_is_bytes(path: str, body: bytes) -> None:
    with suppress(RequestError):
        parse_body(path, body)


@given(sent=REQUESTS)
async def test_only_request_errors_are_raised_whatever_the_body(
    tokenizers: list[ModelTokenizer | None], sent: tuple[str, object]
) -> None:
    path, body = sent
    try:
        request = parse_body(path, json.dumps(body).encode())
    except RequestError:
        return
    for tokenizer in tokenizers:
        with closing(Reader()) as reader:
            prompt = await PromptPipeline(tokenizer, reader=reader).tokenize(request)
        assert (prompt.tokens is None) == (prompt.reason is not None) == bool(prompt.detail)
        assert prompt.cut is None or prompt.tokens is not None
        assert prompt.tokens is None or isinstance(prompt.tokens, array)
        if prompt.unencoded is not None:
            assert prompt.n_estimated == estimated_tokens(len(prompt.unencoded))
    for api in RemoteApi:
        engine_request = remote_request(api, request)
        assert engine_request is None or isinstance(json.loads(engine_request.body), dict)
