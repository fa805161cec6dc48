"""Renderer from chats to text, equal to the engine's `apply_chat_template`."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import cast

import msgspec
from jinja2 import TemplateSyntaxError
from msgspec.structs import replace

from ..errors import RenderError
from ..model import ChatPrompt, TextPrompt
from .content_format import wants_content_parts
from .conversation import Entry, Message, conversation, has_media, merged_system_messages
from .sandbox import MAX_RENDERED_CHARS, compile_template, wants_system_first
from .variables import with_effort

DEFAULT = "default"
TOOL_USE = "tool_use"
"""Name of the template for requests with tools, if a model has several templates."""

FINAL_MARK = "\ue000final-message\ue000 "
"""Marker that is appended to the final message to find its end in the rendered text. Its trailing blank shows whether the
template keeps or trims the blanks around a message."""

MEDIA_MARKS = ("0", "1")
"""Placeholders of one media item in a text and its fork, which differ from there on. All tokenizers distinguish digits."""

THINKING_EFFORTS = ("low", "medium", "high", "xhigh", "max")
"""Efforts of Anthropic's API with which the model thinks."""

PROBE = Message(role="user", content="Hi")
"""Conversation that shows the effect of a variable on a template."""


class ChatTemplate:
    """One compiled template.

    Attributes:
        content_parts: whether it expects message content as a list of parts.
        developer_role: whether it supports the role `developer`.
        source: its text.
    """

    def __init__(self, source: str, *, now: Callable[[], datetime] = datetime.now) -> None:
        """Compile `source`.

        Raises:
            RenderError: `source` is not a valid template.
        Cost: 3 ms per kilobyte; templates have up to about 16.
        """
        try:
            self._template, tree = compile_template(source, now=now)
            self.content_parts = wants_content_parts(tree)
        except TemplateSyntaxError as error:
            raise RenderError(f"chat template line {error.lineno}: {error.message}") from error
        except Exception as error:
            # Jinja compiles to Python, which has its own limits, such as the depth of nested blocks.
            raise RenderError(f"chat template cannot be compiled: {error}") from error
        self.developer_role = "'developer'" in source or '"developer"' in source
        self.source = source

    @cached_property
    def system_first(self) -> bool:
        """Whether the engine assumes that the template rejects system messages after the first message."""
        return wants_system_first(self.source)

    def render(self, variables: Mapping[str, object]) -> str:
        """Render the template with these variables.

        Raises:
            RenderError: the template failed, raised an error, took longer than the limit of `time_bound`, or wrote more
                than `MAX_RENDERED_CHARS`. The message has the kind of failure and the line, but not the template's own
                message, which may contain parts of the prompt.
        """
        pieces: list[str] = []
        n_chars = 0
        try:
            for piece in self._template.generate(variables):
                pieces.append(piece)
                n_chars += len(piece)
                if n_chars > MAX_RENDERED_CHARS:
                    break
        except RenderError as error:
            raise type(error)(f"{error}{_place(error)}") from error
        except Exception as error:
            # A template is a program: it can raise any exception.
            raise RenderError(f"chat template raised {type(error).__name__}{_place(error)}") from error
        if n_chars > MAX_RENDERED_CHARS:
            raise RenderError(f"chat template wrote more than {MAX_RENDERED_CHARS} characters")
        return "".join(pieces)


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """The engine's options for rendering chats; the defaults are those of vLLM.

    Attributes:
        template: text of the template that replaces the model's; None for the model's.
        content_parts: whether templates get message content as a list of parts; None detects it from the template.
        variables: default template variables; the request's take precedence.
        hides_forbidden_tools: whether requests that forbid tools are rendered without them.
    """

    template: str | None = None
    content_parts: bool | None = None
    variables: Mapping[str, object] = field(default_factory=dict[str, object])
    hides_forbidden_tools: bool = False


class ForeignChat(msgspec.Struct, frozen=True):
    """A chat with a template from the request, with all data that another process needs to render it.

    Attributes:
        chat: with all fields filled in that depend on the model.
        special_tokens: as in `ChatRenderer`.
        content_parts: as in `ChatOptions`.
    """

    chat: ChatPrompt
    special_tokens: Mapping[str, str]
    content_parts: bool | None


@dataclass(frozen=True)
class ChatRenderer:
    """Renderer with a model's templates.

    Attributes:
        templates: name -> template; the template of a model with only one is called `default`.
        special_tokens: variables such as `bos_token`, passed to every template.
        without_tools: template of the model's processor, for requests without tools; None if there is none.
        chosen: template that replaces the model's; None for the model's.
        options: the engine's options for templates.
        compiled: compiles templates from requests.
    """

    templates: Mapping[str, ChatTemplate]
    special_tokens: Mapping[str, str]
    without_tools: ChatTemplate | None = None
    chosen: ChatTemplate | None = None
    options: ChatOptions = ChatOptions()
    compiled: Callable[[str], ChatTemplate] = ChatTemplate

    def render(self, chat: ChatPrompt) -> TextPrompt:
        """Render the text that the engine would encode for `chat`, and its fork if it has media.

        Raises:
            RenderError: there is no template for the chat, or the template failed on it.
        Cost: 0.1 ms for 120 kB with a simple template, twice that with media.
        """
        if not chat.messages:
            raise RenderError("the conversation is empty")
        chat = self._resolved(chat)
        fork: str | None = None
        mark: str | None = None
        if has_media(chat.messages):
            # In a list of parts the template itself writes the engine's media placeholder; in a string the engine does.
            mark = None if self._content_parts(chat) else MEDIA_MARKS[0]
            fork = self._text(chat, MEDIA_MARKS[1])
        text = self._text(chat, mark)
        return TextPrompt(text, chat.add_special_tokens, truncation=chat.truncation, fork=fork)

    def foreign(self, chat: ChatPrompt) -> ForeignChat | None:
        """Prepare `chat` for rendering in the template process; None if the template is one of the model's.

        Raises:
            RenderError: fields of the chat depend on the model's template, and the model has none.
        """
        if chat.template is None or chat.template in self.templates:
            return None
        given = self.options.content_parts is not None or chat.template_as_variable
        content_parts = self._content_parts(chat) if given else None
        whole = replace(self._resolved(chat), anthropic=None, template_as_variable=False)
        return ForeignChat(whole, self.special_tokens, content_parts)

    @cached_property
    def _system_first(self) -> bool:
        return any(self._select(None, tools).system_first for tools in (None, ()))

    @cached_property
    def _disabled_effort(self) -> str:
        """The effort that switches thinking off: `none` if the template treats no other effort like it, else `low`."""
        off = self._probe("none")
        if off is None or any(self._probe(effort) == off for effort in THINKING_EFFORTS):
            return "low"
        return "none"

    def _probe(self, effort: str) -> str | None:
        variables = {**self.options.variables, **with_effort({}, effort)}
        try:
            chat = ChatPrompt(messages=(PROBE,), variables=variables)
            return self._text(chat, None)
        except RenderError:
            return None

    def _resolved(self, chat: ChatPrompt) -> ChatPrompt:
        """Fill in the fields of `chat` that depend on the templates or the options."""
        hidden = chat.forbids_tools and self.options.hides_forbidden_tools
        if chat.anthropic is None and not hidden and not self.options.variables:
            return chat
        variables, messages = dict(chat.variables), chat.messages
        if chat.anthropic is not None:
            if chat.anthropic.disables_thinking:
                variables = with_effort(variables, self._disabled_effort)
            if self._system_first:
                messages = merged_system_messages(messages)
        return replace(
            chat,
            messages=messages,
            tools=None if hidden else chat.tools,
            variables={**self.options.variables, **variables},
        )

    def _select(self, wanted: str | None, tools: object) -> ChatTemplate:
        if wanted is not None:
            return self.templates.get(wanted) or self.compiled(wanted)
        if self.chosen is not None:
            return self.chosen
        if tools is None and self.without_tools is not None:
            return self.without_tools
        name = TOOL_USE if tools is not None and TOOL_USE in self.templates else DEFAULT
        if name not in self.templates:
            raise RenderError(f"there is no chat template named {DEFAULT!r}, only {sorted(self.templates)}")
        return self.templates[name]

    def _content_parts(self, chat: ChatPrompt) -> bool:
        if self.options.content_parts is not None:
            return self.options.content_parts
        return self._select(None if chat.template_as_variable else chat.template, chat.tools).content_parts

    def _text(self, chat: ChatPrompt, media_text: str | None) -> str:
        template = self._select(chat.template, chat.tools)
        detects = self.options.content_parts is None and not chat.template_as_variable
        try:
            entries = conversation(
                chat.messages,
                content_parts=template.content_parts if detects else self._content_parts(chat),
                developer_role=template.developer_role,
                calls_in_order=chat.calls_in_order,
                media_text=media_text,
            )
        except RecursionError as error:
            raise RenderError("tool arguments are nested too deeply") from error
        if not chat.continue_final_message:
            return self._render(template, chat, entries)
        if chat.add_generation_prompt:
            raise RenderError("add_generation_prompt and continue_final_message are mutually exclusive")
        return _cut_at_mark(self._render(template, chat, [*entries[:-1], _marked(entries[-1])]))

    def _render(self, template: ChatTemplate, chat: ChatPrompt, entries: Sequence[Entry]) -> str:
        return template.render(
            {
                **self.special_tokens,
                **chat.variables,
                "messages": entries,
                "tools": chat.tools,
                "documents": chat.documents,
                "add_generation_prompt": chat.add_generation_prompt,
            }
        )


def _place(error: BaseException) -> str:
    """Return ` in line N` for an error that the template raised in line N; empty for other errors."""
    frames = traceback.walk_tb(error.__traceback__)
    lines = [line for frame, line in frames if frame.f_code.co_filename == "<template>"]
    return f" in line {lines[-1]}" if lines else ""


def _marked(entry: Entry) -> Entry:
    """Append `FINAL_MARK` to the last text of the entry's content."""
    content = entry["content"]
    if isinstance(content, str):
        return {**entry, "content": content + FINAL_MARK}
    parts = list(cast("list[Entry]", content))
    for place in reversed(range(len(parts))):
        if "text" in parts[place]:
            parts[place] = {**parts[place], "text": f"{parts[place]['text']}{FINAL_MARK}"}
            return {**entry, "content": parts}
    raise RenderError("the final message has no text to continue")


def _cut_at_mark(text: str) -> str:
    end = text.rfind(FINAL_MARK.strip())
    if end < 0:
        raise RenderError("the chat template omits the final message")
    kept = text[:end]
    return kept if text.startswith(FINAL_MARK, end) else kept.rstrip()
