"""Comparison of templates in the styles of many models with their rendering by transformers."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from kvatlas.tokenization.chats.chat import ChatRenderer, ChatTemplate
from kvatlas.tokenization.chats.conversation import Message
from kvatlas.tokenization.errors import RenderError
from kvatlas.tokenization.model import ChatPrompt
from support.tree import ROOT

GOLDEN = ROOT / "tests" / "golden" / "transformers-5.19.0"
CHATS: dict[str, dict[str, Any]] = {
    chat.pop("id"): chat for chat in json.loads((GOLDEN / "chats.json").read_text())
}
TEXTS = [json.loads(line) for line in (GOLDEN / "texts.jsonl").read_text().splitlines()]


def the_day() -> datetime:
    return datetime(2026, 11, 3)  # noqa: DTZ001 - local time


@pytest.fixture(scope="module")
def renderers() -> dict[str, ChatRenderer]:
    return {
        file.stem: ChatRenderer(
            templates={"default": ChatTemplate(file.read_text(), now=the_day)},
            special_tokens={"bos_token": "<s>", "eos_token": "</s>"},
        )
        for file in (GOLDEN / "templates").glob("*.jinja")
    }


def test_every_template_is_compared_with_every_chat(renderers: dict[str, ChatRenderer]) -> None:
    assert {(line["template"], line["chat"]) for line in TEXTS} == {
        (template, chat) for template in renderers for chat in CHATS
    }


@pytest.mark.parametrize(
    "line", [pytest.param(line, id=f"{line['template']}-{line['chat']}") for line in TEXTS]
)
def test_text_is_that_of_transformers(renderers: dict[str, ChatRenderer], line: dict[str, Any]) -> None:
    fields = CHATS[line["chat"]]
    messages = msgspec.convert(fields["messages"], tuple[Message, ...])
    chat = replace(ChatPrompt(messages=()), **{**fields, "messages": messages})
    if line["text"] is None:
        with pytest.raises(RenderError):
            renderers[line["template"]].render(chat)
    else:
        assert renderers[line["template"]].render(chat).text == line["text"]
