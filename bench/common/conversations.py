"""Model folder and request bodies for the benchmarks of the request path.

The tokenizer is a byte-level BPE of 32,000 tokens with the split pattern of Qwen 2, trained on Python's standard library;
texts are out of it too. Everything is kept in `build/bench`, so that only the first run trains.
"""

from __future__ import annotations

import json
import sysconfig
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

MODEL = "bench"
FOLDER = Path(__file__).parents[2] / "build" / "bench" / "model-32k"
VOCABULARY_SIZE = 32_000
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

CHARS_PER_TOKEN = 4.2
SYSTEM_SHARE = 0.3
"""Share of the system prompt in a conversation; the rest are turns."""

TURN_TOKENS = 250
"""Tokens of one message; a new turn has two messages."""

Message = dict[str, str]


def model_folder() -> Path:
    """Return the folder, and write it if it is not there."""
    if not (FOLDER / "chat_template.jinja").is_file():
        FOLDER.mkdir(parents=True, exist_ok=True)
        print(f"training a tokenizer in {FOLDER}")
        tokenizer = Tokenizer(models.BPE())
        tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(SPLIT), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=VOCABULARY_SIZE, initial_alphabet=alphabet, show_progress=False
        )
        tokenizer.train_from_iterator(sources(), trainer)
        special = [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS]
        tokenizer.add_special_tokens(special)  # pyright: ignore[reportUnknownMemberType]  # the library's stub
        tokenizer.save(str(FOLDER / "tokenizer.json"))
        (FOLDER / "chat_template.jinja").write_text(TEMPLATE)
    return FOLDER


def sources() -> Iterator[str]:
    """Yield the files of the standard library, without those that are not UTF-8."""
    for file in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        if "site-packages" not in file.parts:
            try:
                yield file.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue


@cache
def _text() -> str:
    return "".join(sources())


def text(n_tokens: int, number: int) -> str:
    """Return about `n_tokens` tokens of text, different for every `number`."""
    n_chars = int(n_tokens * CHARS_PER_TOKEN)
    start = number * 7_919_993 % (len(_text()) - n_chars)
    return _text()[start : start + n_chars]


def conversation(n_tokens: int, number: int) -> list[Message]:
    """Return a system prompt and turns, about `n_tokens` in all, different for every `number`."""
    messages = [{"role": "system", "content": text(int(n_tokens * SYSTEM_SHARE), number)}]
    n_turns = int(n_tokens * (1 - SYSTEM_SHARE) / TURN_TOKENS) // 2
    for turn in range(n_turns):
        messages += next_turn(number, turn)
    return messages


def next_turn(number: int, turn: int) -> list[Message]:
    """Return the two messages of one turn."""
    return [
        {"role": role, "content": text(TURN_TOKENS, number * 10_007 + turn * 2 + i + 1)}
        for i, role in enumerate(("user", "assistant"))
    ]


def chat_body(messages: list[Message]) -> bytes:
    """Return the body of a chat completion."""
    return json.dumps({"model": MODEL, "messages": messages, "stream": True}).encode()


def completion_body(prompt: str) -> bytes:
    """Return the body of a completion."""
    return json.dumps({"model": MODEL, "prompt": prompt, "stream": True}).encode()
