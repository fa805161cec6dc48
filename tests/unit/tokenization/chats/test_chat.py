from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from msgspec.structs import replace

from kvatlas.tokenization.chats.chat import ChatRenderer, ChatTemplate
from kvatlas.tokenization.chats.conversation import Message
from kvatlas.tokenization.errors import RenderError
from kvatlas.tokenization.model import AnthropicChat, ChatPrompt

ONE = "{% for m in messages %}[{{ m.content }}]{% endfor %}"
PARTS = "{% for m in messages %}{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endfor %}"


def renderer(**sources: str) -> ChatRenderer:
    return ChatRenderer(
        templates={name: ChatTemplate(source) for name, source in sources.items()}, special_tokens={}
    )


@pytest.mark.parametrize(
    ("tools", "text"),
    [pytest.param(None, "plain", id="no_tools"), pytest.param([], "tools", id="empty_list_of_tools")],
)
def test_template_is_chosen_by_tools_when_there_are_several(tools: object, text: str) -> None:
    prompt = ChatPrompt(messages=(Message(role="user"),), tools=tools)
    assert renderer(default="plain", tool_use="tools").render(prompt).text == text


def test_default_template_takes_tools_when_there_is_no_other() -> None:
    prompt = ChatPrompt(messages=(Message(role="user"),), tools=[{"a": 1}])
    assert renderer(default="{{ tools | tojson }}").render(prompt).text == '[{"a": 1}]'


def test_local_time_is_given_to_templates_that_ask_for_it() -> None:
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}", now=lambda: datetime(2026, 11, 3))  # noqa: DTZ001 - local time
    assert template.render({}) == "03 Nov 2026"


@pytest.mark.parametrize(
    ("source", "contents", "text"),
    [
        pytest.param(ONE, ("a", "b "), "[a][b ", id="string"),
        pytest.param(PARTS, ("a", "b "), "[a][b ", id="parts"),
        pytest.param(
            "{% for m in messages %}[{{ m.content | trim }}]{% endfor %}", ("b  ",), "[b", id="trimmed"
        ),
        pytest.param(ONE, ("",), "[", id="empty"),
    ],
)
def test_text_ends_with_the_final_message_when_it_is_to_be_continued(
    source: str, contents: tuple[str, ...], text: str
) -> None:
    prompt = ChatPrompt(
        messages=tuple(Message(role="user", content=content) for content in contents),
        add_generation_prompt=False,
        continue_final_message=True,
    )
    assert renderer(default=source).render(prompt).text == text


@pytest.mark.parametrize(
    ("source", "prompt", "message"),
    [
        pytest.param(ONE, ChatPrompt(messages=()), "the conversation is empty", id="empty"),
        pytest.param(
            ONE,
            ChatPrompt(messages=(Message(role="user", content="a"),), continue_final_message=True),
            "are mutually exclusive",
            id="generate_and_continue",
        ),
        pytest.param(
            "{{ messages[0].content }}",
            ChatPrompt(
                messages=(Message(role="user", content="a"), Message(role="assistant", content="b")),
                add_generation_prompt=False,
                continue_final_message=True,
            ),
            "omits the final message",
            id="final_message_left_out",
        ),
        pytest.param(
            PARTS,
            ChatPrompt(
                messages=(Message(role="assistant"),),
                add_generation_prompt=False,
                continue_final_message=True,
            ),
            "no text to continue",
            id="final_message_without_text",
        ),
        pytest.param(
            "\n{{ raise_exception(messages[0].content) }}",
            ChatPrompt(messages=(Message(role="user", content="secret"),)),
            "^chat template raised TemplateError in line 2$",
            id="refused_by_the_template",
        ),
        pytest.param(
            "{{ 1 + messages[0].content }}",
            ChatPrompt(messages=(Message(role="user", content="secret"),)),
            "^chat template raised TypeError in line 1$",
            id="failed",
        ),
        pytest.param(
            ONE,
            ChatPrompt(messages=(Message(role="user", content="a"),), template="{% if %}"),
            "^chat template line 1: ",
            id="own_template_broken",
        ),
    ],
)
def test_render_error_is_raised_when_the_chat_cannot_be_rendered(
    source: str, prompt: ChatPrompt, message: str
) -> None:
    with pytest.raises(RenderError, match=message):
        renderer(default=source).render(prompt)


def test_render_error_is_raised_when_no_template_is_the_default() -> None:
    with pytest.raises(RenderError, match=r"there is no chat template named 'default', only \['rag'\]"):
        renderer(rag=ONE).render(ChatPrompt(messages=(Message(role="user"),)))


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param("[" * 100_000, id="nested"),
        pytest.param('{"a": ' * 100_000, id="nested_objects"),
    ],
)
def test_render_error_is_raised_when_tool_arguments_are_nested_too_deeply(arguments: str) -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    with pytest.raises(RenderError, match="nested too deeply"):
        renderer(default=ONE).render(ChatPrompt(messages=(Message(role="assistant", tool_calls=[call]),)))


def test_tool_arguments_are_empty_when_a_number_in_them_is_too_long() -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": '{"a": ' + "9" * 5000 + "}"}}
    text = renderer(default="{{ messages[0].tool_calls[0].function | tojson }}").render(
        ChatPrompt(messages=(Message(role="assistant", tool_calls=[call]),))
    )
    assert text.text == '{"arguments": {}, "name": "f"}'


@pytest.mark.parametrize(
    ("source", "message"),
    [
        pytest.param("a\n{% if %}", "^chat template line 2: ", id="syntax"),
        pytest.param("{{ 1 | unheard_of }}", "No filter named 'unheard_of'", id="filter"),
        pytest.param(
            "{% for a in b %}" * 30 + "{% endfor %}" * 30, "cannot be compiled", id="too_many_blocks"
        ),
        pytest.param("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "chat template", id="too_deep"),
    ],
)
def test_render_error_is_raised_when_a_template_cannot_be_compiled(source: str, message: str) -> None:
    with pytest.raises(RenderError, match=message):
        ChatTemplate(source)


STRICT = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('') }}{% endif %}"
SYSTEM_ANYWHERE = "{% for m in messages %}[{{ m.role }}: {{ m.content }}]{% endfor %}"
SYSTEM_FIRST = STRICT + "[{{ m.role }}: {{ m.content }}]{% endfor %}"
INLINE = (
    Message(role="system", content="s"),
    Message(role="user", content="a"),
    Message(role="system", content="t"),
    Message(role="user", content="b"),
)


@pytest.mark.parametrize(
    ("sources", "text"),
    [
        pytest.param(
            {"default": SYSTEM_ANYWHERE}, "[system: s][user: a][system: t][user: b]", id="taken_anywhere"
        ),
        pytest.param({"default": SYSTEM_FIRST}, "[system: st][user: a][user: b]", id="taken_first"),
        pytest.param(
            {"default": SYSTEM_ANYWHERE, "tool_use": SYSTEM_FIRST},
            "[system: st][user: a][user: b]",
            id="taken_first_with_tools",
        ),
        pytest.param(
            {"default": SYSTEM_ANYWHERE + "{% generation %}{% endgeneration %}"},
            "[system: st][user: a][user: b]",
            id="tag_the_engines_probe_does_not_know",
        ),
    ],
)
def test_inline_system_messages_are_merged_when_the_template_refuses_them(
    sources: dict[str, str], text: str
) -> None:
    chat = ChatPrompt(messages=INLINE, anthropic=AnthropicChat(disables_thinking=False))
    assert renderer(**sources).render(chat).text == text


def test_inline_system_messages_stay_when_the_api_is_not_anthropics() -> None:
    assert renderer(default=SYSTEM_ANYWHERE).render(ChatPrompt(messages=INLINE)).text.count("system") == 2


VARIABLES = "{{ reasoning_effort }} {{ enable_thinking }}"


@pytest.mark.parametrize(
    ("source", "variables", "text"),
    [
        pytest.param(VARIABLES, {}, "none False", id="told_apart"),
        pytest.param("{{ enable_thinking }}", {}, "False", id="switched_off"),
        pytest.param(
            "{% set _ = reasoning_effort %}" + VARIABLES.replace("reasoning_effort", "x"),
            {},
            " False",
            id="switch_alone",
        ),
        pytest.param(
            "{% if reasoning_effort == 'none' %}{{ raise_exception('') }}{% endif %}{{ reasoning_effort }}",
            {},
            "low",
            id="none_is_refused",
        ),
        pytest.param("{{ x }}{{ reasoning_effort if messages[0].content == 'q' }}", {}, "low", id="ignored"),
        pytest.param(VARIABLES, {"enable_thinking": True}, "none True", id="variable_wins"),
    ],
)
def test_thinking_is_disabled_in_the_way_the_template_understands(
    source: str, variables: dict[str, object], text: str
) -> None:
    chat = ChatPrompt(
        messages=(Message(role="user", content="q"),),
        variables=variables,
        anthropic=AnthropicChat(disables_thinking=True),
    )
    assert renderer(default=source).render(chat).text == text


def test_format_of_content_is_that_of_the_models_own_template_when_another_comes_as_a_variable() -> None:
    chat = ChatPrompt(messages=(Message(role="user", content="a"),), template="{{ messages[0].content }}")
    assert renderer(default=PARTS).render(chat).text == "a"
    assert (
        renderer(default=PARTS).render(replace(chat, template_as_variable=True)).text
        == "[{'type': 'text', 'text': 'a'}]"
    )


def test_processors_template_is_for_requests_without_tools() -> None:
    chat = ChatPrompt(messages=(Message(role="user"),))
    found = ChatRenderer({"default": ChatTemplate("own")}, {}, without_tools=ChatTemplate("processor"))
    assert [found.render(replace(chat, tools=tools)).text for tools in (None, "")] == ["processor", "own"]


def test_mark_goes_to_the_last_text_when_the_final_message_ends_with_an_image() -> None:
    content: list[str | dict[str, Any]] = [{"type": "text", "text": "a "}, {"type": "image_url"}]
    source = (
        "{% for m in messages %}{% for p in m.content %}{{ p.text or '<image>' }}{% endfor %}!{% endfor %}"
    )
    chat = ChatPrompt(
        messages=(Message(role="user", content=content),),
        add_generation_prompt=False,
        continue_final_message=True,
    )
    assert renderer(default=source).render(chat).text == "a "
