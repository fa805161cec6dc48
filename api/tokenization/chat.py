"""Chats to text, as the engine's `apply_chat_template` writes them."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import cast

from jinja2 import TemplateSyntaxError

from .content_format import wants_content_parts
from .conversation import Entry, conversation
from .errors import RenderError
from .model import ChatPrompt
from .sandbox import MAX_RENDERED_CHARS, compile_template

DEFAULT = "default"
TOOL_USE = "tool_use"
"""Name of the template for requests with tools, where a model has several."""

FINAL_MARK = "\ue000final-message\ue000 "
"""Put behind the final message to find where it ends in the rendered text. The blank at its end shows whether the
template keeps or trims the blanks around a message."""


class ChatTemplate:
    """One compiled template.

    Attributes:
        content_parts: whether it wants message content as a list of parts.
        developer_role: whether it knows the role `developer`.
    """

    def __init__(self, source: str, *, now: Callable[[], datetime] = datetime.now) -> None:
        """Compile `source`.

        Raises:
            RenderError: not a template.
        Cost: 3 ms a kilobyte; templates have up to about 16.
        """
        try:
            self._template, tree = compile_template(source, now=now)
            self.content_parts = wants_content_parts(tree)
        except TemplateSyntaxError as error:
            raise RenderError(f"chat template line {error.lineno}: {error.message}") from error
        except Exception as error:
            # Jinja compiles to Python, which has limits of its own, such as the depth of nested blocks.
            raise RenderError(f"chat template cannot be compiled: {error}") from error
        self.developer_role = "'developer'" in source or '"developer"' in source

    def render(self, variables: Mapping[str, object]) -> str:
        """The text for these variables.

        Raises:
            RenderError: the template failed, refused, or wrote more than `MAX_RENDERED_CHARS`. The message tells the
                kind of failure and the line; what a template says itself may hold parts of the prompt.
        """
        pieces: list[str] = []
        n_chars = 0
        try:
            for piece in self._template.generate(variables):
                pieces.append(piece)
                n_chars += len(piece)
                if n_chars > MAX_RENDERED_CHARS:
                    break
        except Exception as error:
            # A template is a program: any exception can come out of it.
            raise RenderError(f"chat template raised {type(error).__name__}{_place(error)}") from error
        if n_chars > MAX_RENDERED_CHARS:
            raise RenderError(f"chat template wrote more than {MAX_RENDERED_CHARS} characters")
        return "".join(pieces)


@dataclass(frozen=True, slots=True)
class ChatRenderer:
    """A model's templates.

    Attributes:
        templates: name -> template; a model with one calls it `default`.
        special_tokens: variables such as `bos_token` that every template sees.
    """

    templates: Mapping[str, ChatTemplate]
    special_tokens: Mapping[str, str]

    def render(self, chat: ChatPrompt) -> str:
        """The text the engine would encode for `chat`.

        Raises:
            RenderError: there is no template for it, or the template failed on it.
        Cost: 0.1 ms for 120 kB with a plain template; a template out of the request is compiled first, every time.
        """
        if not chat.messages:
            raise RenderError("the conversation is empty")
        template = self._select(chat)
        try:
            entries = conversation(
                chat.messages, content_parts=template.content_parts, developer_role=template.developer_role
            )
        except RecursionError as error:
            raise RenderError("tool arguments are nested too deeply") from error
        if not chat.continue_final_message:
            return self._render(template, chat, entries)
        if chat.add_generation_prompt:
            raise RenderError("add_generation_prompt and continue_final_message exclude each other")
        entries[-1] = _marked(entries[-1])
        return _cut_at_mark(self._render(template, chat, entries))

    def _select(self, chat: ChatPrompt) -> ChatTemplate:
        if chat.template is not None:
            return self.templates.get(chat.template) or ChatTemplate(chat.template)
        name = TOOL_USE if chat.tools is not None and TOOL_USE in self.templates else DEFAULT
        if name not in self.templates:
            raise RenderError(f"no chat template is called {DEFAULT!r}, there are {sorted(self.templates)}")
        return self.templates[name]

    def _render(self, template: ChatTemplate, chat: ChatPrompt, entries: list[Entry]) -> str:
        return template.render(
            {
                **self.special_tokens,
                **(chat.variables or {}),
                "messages": entries,
                "tools": chat.tools,
                "documents": chat.documents,
                "add_generation_prompt": chat.add_generation_prompt,
            }
        )


def _place(error: BaseException) -> str:
    """` in line N` of the template where `error` was raised; empty when it was raised outside."""
    frames = traceback.walk_tb(error.__traceback__)
    lines = [line for frame, line in frames if frame.f_code.co_filename == "<template>"]
    return f" in line {lines[-1]}" if lines else ""


def _marked(entry: Entry) -> Entry:
    """`entry` with `FINAL_MARK` behind the last text of its content."""
    content = entry["content"]
    if isinstance(content, str):
        return {**entry, "content": content + FINAL_MARK}
    parts = cast("list[Entry]", content)
    if not parts:
        raise RenderError("the final message has no text to continue")
    return {**entry, "content": [*parts[:-1], {**parts[-1], "text": f"{parts[-1]['text']}{FINAL_MARK}"}]}


def _cut_at_mark(text: str) -> str:
    end = text.rfind(FINAL_MARK.strip())
    if end < 0:
        raise RenderError("the chat template leaves out the final message")
    kept = text[:end]
    return kept if text.startswith(FINAL_MARK, end) else kept.rstrip()
