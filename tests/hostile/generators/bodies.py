"""Request bodies of every API, as a hostile client would write them: made by a grammar of JSON and of what is not JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from random import Random

from hostile import messages

PATHS = (
    "/v1/chat/completions",
    "/v1/chat/completions/batch",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/messages",
    "/v1/responses",
)

GRPC_PATHS = (
    "/vllm.grpc.engine.VllmEngine/Generate",
    "/vllm.grpc.engine.VllmEngine/Embed",
    "/google.cloud.aiplatform.v1.PredictionService/ChatCompletions",
)

MAX_REPEATS = 3000
"""Repeats of one part, so that some hundred bodies are tried in seconds."""

NUMBERS = (
    "0", "-0", "-1", "1e999", "-1e-999", "9" * 400, "1" + "0" * 5000, "0.1e+308", "18446744073709551616",
    "9223372036854775808", "NaN", "Infinity", "01", "1.",
)  # fmt: skip
CHARACTERS = (
    "a",
    " ",
    "\t",
    "e\u0301",
    "\u0301",
    "\ud7ff",
    "\uffff",
    "\U0001d518",
    "\U0001f3f3\ufe0f\u200d\U0001f308",
    "'s",
    "1",
    "\u2028",
    "<|im_start|>",
    "{{",
    "\\",
)
ROLES = (
    "user",
    "assistant",
    "system",
    "tool",
    "developer",
    "",
    "\U0001f3f3\ufe0f\u200d\U0001f308",
    None,
    7,
    ["user"],
)


def inputs(rng: Random) -> Iterator[tuple[str, bytes]]:
    """Yield paths and bodies without end."""
    while True:
        if not rng.randrange(5):
            yield rng.choice(GRPC_PATHS), messages.body(rng)
            continue
        path = rng.choice(PATHS)
        text = rng.choice(SHAPES)(rng).encode(errors="surrogatepass")
        yield path, rng.choice(SPOILERS)(rng, text)


def texts(rng: Random) -> str:
    """Return a text of few different characters, often one long word."""
    character = rng.choice(CHARACTERS)
    return character * rng.choice((0, 1, 7, 100, 10_000, 100_000 // len(character)))


def value(rng: Random, depth: int = 3) -> object:
    """Return any JSON value."""
    kind = rng.randrange(8 if depth else 5)
    many = rng.choice((0, 1, 3))
    if kind < 5:
        return (None, True, rng.randrange(-5, 2**70), rng.random() * 1e300, texts(rng)[:200])[kind]
    if kind == 5:
        return {texts(rng)[:20]: value(rng, depth - 1) for _ in range(many)}
    return [value(rng, depth - 1) for _ in range(many)]


def content(rng: Random) -> object:
    """Return the content of a message: text, parts of all kinds, or anything."""
    kinds = (
        "text",
        "input_text",
        "image_url",
        "input_audio",
        "tool_use",
        "tool_result",
        "refusal",
        "odd",
        None,
    )
    many = rng.choice((0, 1, 10, MAX_REPEATS))
    parts = [{"type": rng.choice(kinds), "text": rng.choice(("a", "", None, 3))} for _ in range(many)]
    return rng.choice((texts(rng), parts, value(rng)))


def message(rng: Random) -> object:
    """Return one message, usually with a role and content."""
    calls = [
        {
            "id": "1",
            "type": "function",
            "function": {"name": "f", "arguments": rng.choice(("{}", "{", "[" * 500))},
        }
        for _ in range(rng.choice((0, 0, 1, MAX_REPEATS // 10)))
    ]
    whole = {"role": rng.choice(ROLES), "content": content(rng), "tool_calls": calls}
    return rng.choice((whole, whole, whole, value(rng), {"role": "user"}))


def tool(rng: Random) -> object:
    """Return one tool, with a schema that may be deep."""
    schema: object = {"type": "string"}
    for _ in range(rng.choice((0, 1, 40))):
        schema = {"type": "object", "properties": {"a": schema}}
    return rng.choice(({"type": "function", "function": {"name": "f", "parameters": schema}}, value(rng)))


def fields(rng: Random) -> dict[str, object]:
    """Return the fields of a request of any API, mixed."""
    many = rng.choice((0, 1, 3, MAX_REPEATS // 10))
    messages = [message(rng) for _ in range(min(many, 30))] or [{"role": "user", "content": "x"}] * many
    names = ("m", "m", "m", "m:lora", "", texts(rng)[:5000], None)
    found: dict[str, object] = {"model": rng.choice(names), "messages": messages}
    more: dict[str, object] = {
        "prompt": rng.choice(
            (texts(rng), [texts(rng)[:9]] * many, [1, 2, 3] * many, [[1]] * many, [2**63] * 3, value(rng))
        ),
        "input": rng.choice((texts(rng), messages, value(rng))),
        "system": content(rng),
        "instructions": texts(rng),
        "tools": [tool(rng) for _ in range(min(many, 30))],
        "chat_template_kwargs": value(rng),
        "documents": value(rng),
        "cache_salt": rng.choice((texts(rng), 1, "")),
        "stream": value(rng, 0),
        "max_tokens": rng.choice((2**70, -1, "x")),
        "mm_processor_kwargs": value(rng),
    }
    found.update({name: more[name] for name in rng.sample(list(more), rng.randrange(len(more)))})
    return found


def request(rng: Random) -> str:
    """Return a request as JSON."""
    return json.dumps(fields(rng), ensure_ascii=rng.random() < 0.5)


def nested(rng: Random) -> str:
    """Return a request with a value that nests deeply, closed or not."""
    open_, close = rng.choice((("[", "]"), ('{"a":', "}"), ('[{"a":', "}]")))
    deep = rng.choice((10, 500, 1100, 20_000))
    text = open_ * deep + "1" + close * (deep if rng.random() < 0.8 else 0)
    name = rng.choice(("messages", "tools", "prompt", "x", "chat_template_kwargs"))
    return '{"model":"m","messages":[{"role":"user","content":"x"}],"' + f'{name}":{text}}}'


def numbers(rng: Random) -> str:
    """Return a request with numbers that are too large, too precise or no JSON."""
    prompt = ",".join(rng.choice(NUMBERS) for _ in range(rng.choice((1, 10, 1000))))
    return f'{{"model":"m","prompt":[{prompt}],"max_tokens":{rng.choice(NUMBERS)}}}'


def repeated_keys(rng: Random) -> str:
    """Return a request in which keys appear many times with different values."""
    many = rng.choice((2, 100, MAX_REPEATS))
    pairs = (
        f'"{rng.choice(("model", "messages", "prompt", "x"))}":{json.dumps(value(rng, 1))}'
        for _ in range(many)
    )
    return "{" + ",".join(pairs) + "}"


def space(rng: Random) -> str:
    """Return a request that is nearly all white space."""
    return "{" + " \n\t"[rng.randrange(3)] * 200_000 + request(rng)[1:]


def not_an_object(rng: Random) -> str:
    """Return JSON that is no request, or no JSON."""
    return rng.choice(("", "null", "[]", '""', "{", "\x00" * 1000, json.dumps(value(rng)), "\\u0000" * 1000))


def whole(_: Random, body: bytes) -> bytes:
    """Return the body."""
    return body


def cut(rng: Random, body: bytes) -> bytes:
    """Return the body up to any byte."""
    return body[: rng.randrange(len(body) + 1)]


def flipped(rng: Random, body: bytes) -> bytes:
    """Return the body with some bytes replaced, which is often no UTF-8."""
    found = bytearray(body)
    for _ in range(rng.choice((1, 10)) if found else 0):
        found[rng.randrange(len(found))] = rng.randrange(256)
    return bytes(found)


SHAPES: tuple[Callable[[Random], str], ...] = (
    request, request, request, request, nested, numbers, repeated_keys, space, not_an_object,
)  # fmt: skip
SPOILERS: tuple[Callable[[Random, bytes], bytes], ...] = (whole, whole, whole, whole, cut, flipped)
