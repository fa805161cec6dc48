from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvatlas.tokenization.chats.chat import ChatOptions, ChatRenderer, ChatTemplate, ForeignChat
from kvatlas.tokenization.chats.conversation import Message
from kvatlas.tokenization.chats.template_process import TemplateProcess
from kvatlas.tokenization.errors import RenderError
from kvatlas.tokenization.model import AnthropicChat, ChatPrompt, Truncation
from support.tree import ROOT
from support.waiting import until

GOLDEN = ROOT / "tests" / "golden" / "transformers-5.19.0"
ECHO = "{% for m in messages %}[{{ m.content }}]{% endfor %}"

DOUBLING = "{%% set ns = namespace(t=%s) %%}{%% for i in range(99) %%}{%% set ns.t = %s %%}{%% endfor %%}"
TOO_MUCH_MEMORY = {
    "concatenation": DOUBLING % ("'abcdefgh'", "ns.t ~ ns.t"),
    "sum_of_texts": DOUBLING % ("'abcdefgh'", "ns.t + ns.t"),
    "sum_of_lists": DOUBLING % ("[1]", "ns.t + ns.t"),
    "join": DOUBLING % ("'a' * 1000", "[ns.t, ns.t] | join"),
    "replace_filter": DOUBLING % ("'a' * 1000", "ns.t | replace('a', ns.t)"),
    "replace_method": DOUBLING % ("'a' * 1000", "ns.t.replace('a', ns.t)"),
    "format_operator": "{{ ('%9999999999d' % 1) | length }}",
    "format_method": "{{ '{:9999999999}'.format(1) | length }}",
    "format_filter": "{{ '%9999999999d' | format(1) | length }}",
    "center_filter": "{{ 'a' | center(10 ** 10) | length }}",
    "center_method": "{{ 'a'.center(10 ** 10) | length }}",
    "ljust": "{{ 'a'.ljust(10 ** 10) | length }}",
    "zfill": "{{ 'a'.zfill(10 ** 10) | length }}",
    "indent": "{{ ('\n' * 10 ** 6) | indent(10 ** 6, blank=true) | length }}",
    "batch": "{{ [1] | batch(10 ** 10, 0) | list | length }}",
    "lists_of_ranges": "{{ ([range(99999)] * 9999) | map('list') | list | length }}",
    "tojson": "{{ [1, [2]] | tojson(indent=10 ** 9) | length }}",
    "folded_by_the_compiler": "{{ 'a' | center(9999999999) }}",
}
TOO_LONG = {
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "macros": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "sum_in_one_step": "{{ ([[0]] * 9999999) | sum(start=[]) | length }}",
    "numbers_in_one_step": DOUBLING % ("9", "ns.t * ns.t"),
    "text_in_one_step": "{{ lipsum(10 ** 9) | length }}",
    "compilation": "{{ a }}{% if b %}{% endif %}" * 200_000,
}


@pytest.fixture
def process() -> Iterator[TemplateProcess]:
    """Start a process with the default limit of one rendering, and a long queue time for a busy machine."""
    with closing(TemplateProcess(wait_s=60)) as process:
        yield process


@pytest.fixture
def unlimited() -> Iterator[TemplateProcess]:
    """Start a process with time limits that no good template reaches."""
    with closing(TemplateProcess(render_s=60, wait_s=60)) as process:
        yield process


def foreign(template: str = ECHO, content: str = "hi", **fields: Any) -> ForeignChat:
    messages = (Message(role="user", content=content),)
    found = ChatRenderer({}, {}).foreign(ChatPrompt(messages=messages, template=template, **fields))
    assert found is not None
    return found


def outcome(process: TemplateProcess, template: str) -> str:
    """Return the text of a template, or the error message."""
    try:
        return process.render(foreign(template)).text
    except RenderError as error:
        return str(error)


def state(pid: int | None) -> tuple[str, int]:
    """Return the state letter of a process, Z if it does not exist, and its CPU time in ticks."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return "Z", 0
    return fields[0], int(fields[11])


def alive(pid: int | None) -> bool:
    return state(pid)[0] != "Z"


async def until_busy(pid: int | None) -> None:
    """Wait until an idle process has started to work."""
    idle = state(pid)[1]
    await until(lambda: state(pid)[1] > idle + 2, what="a process at work")


@pytest.mark.slow
def test_process_stays_usable_when_templates_take_too_much_memory(unlimited: TemplateProcess) -> None:
    unlimited.render(foreign())
    pid = unlimited.pid
    for name, template in TOO_MUCH_MEMORY.items():
        assert "MemoryError" in outcome(unlimited, template), name
        assert unlimited.render(foreign(content=name)).text == f"[{name}]"
    assert unlimited.pid == pid


@pytest.mark.slow
def test_next_chat_is_rendered_when_templates_take_too_long(process: TemplateProcess) -> None:
    for name, template in TOO_LONG.items():
        assert "took longer than 0." in outcome(process, template), name
        assert process.render(foreign(content=name)).text == f"[{name}]"


def test_texts_are_those_of_transformers_when_the_template_is_good(unlimited: TemplateProcess) -> None:
    chats = {chat["id"]: chat for chat in json.loads((GOLDEN / "chats.json").read_text())}
    n_compared = 0
    for line in map(json.loads, (GOLDEN / "texts.jsonl").read_text().splitlines()):
        source = (GOLDEN / "templates" / f"{line['template']}.jinja").read_text()
        fields = {name: value for name, value in chats[line["chat"]].items() if name != "id"}
        if line["text"] is None or "strftime_now" in source:
            continue
        chat = msgspec.structs.replace(
            ChatPrompt(messages=()),
            **{**fields, "messages": msgspec.convert(fields["messages"], tuple[Message, ...])},
            template=source,
        )
        found = ChatRenderer({}, {"bos_token": "<s>", "eos_token": "</s>"}).foreign(chat)
        assert found is not None
        assert unlimited.render(found).text == line["text"]
        n_compared += 1
    assert n_compared > 50


IMAGE: list[str | dict[str, Any]] = [{"type": "text", "text": "a"}, {"type": "image_url"}]
CALL = {"type": "function", "function": {"name": "f", "arguments": '{"a": "\\ud800"}'}}


@pytest.mark.parametrize(
    ("template", "fields", "options"),
    [
        pytest.param(ECHO, {"truncation": Truncation(3, "left")}, {}, id="truncation"),
        pytest.param(ECHO, {"add_special_tokens": True}, {}, id="special_tokens"),
        pytest.param(ECHO, {"messages": (Message(role="user", content=IMAGE),)}, {}, id="media"),
        pytest.param(
            "{% for m in messages %}{% for p in m.content %}{{ p }}{% endfor %}{% endfor %}",
            {"messages": (Message(role="user", content=IMAGE),)},
            {},
            id="media_in_parts",
        ),
        pytest.param(
            ECHO,
            {"messages": (Message(role="user", content="a "),), "add_generation_prompt": False,
             "continue_final_message": True},
            {},
            id="continued",
        ),
        pytest.param("{{ x }} {{ tools | tojson }}", {"variables": {"x": 2**80}, "tools": [2**64, 0.1]}, {}, id="numbers"),
        pytest.param(
            "{{ messages[0].tool_calls[0].function.arguments.a }}",
            {"messages": (Message(role="assistant", tool_calls=[CALL]),)},
            {},
            id="lone_surrogate",
        ),
        pytest.param(ECHO, {}, {"content_parts": True}, id="parts_as_configured"),
        pytest.param(ECHO, {"template_as_variable": True}, {}, id="parts_as_in_the_models_template"),
        pytest.param("{{ x }}{{ y }}", {"variables": {"x": 1}}, {"variables": {"x": 2, "y": 3}}, id="variables"),
        pytest.param("{{ tools }}", {"tools": [1], "forbids_tools": True}, {"hides_forbidden_tools": True}, id="hidden_tools"),
        pytest.param(
            "{{ reasoning_effort }}{{ messages | length }}",
            {"messages": (Message(role="system", content="a"), Message(role="user"), Message(role="system", content="b")),
             "anthropic": AnthropicChat(disables_thinking=True)},
            {},
            id="anthropic",
        ),
    ],
)  # fmt: skip
def test_prompt_is_that_of_the_renderer_when_it_comes_from_the_process(
    unlimited: TemplateProcess, template: str, fields: dict[str, Any], options: dict[str, Any]
) -> None:
    own = ChatTemplate("{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}")
    renderer = ChatRenderer({"default": own}, {"bos_token": "<s>"}, options=ChatOptions(**options))
    chat = ChatPrompt(messages=(Message(role="user", content="hi"),), template=template)
    chat = msgspec.structs.replace(chat, **fields)
    found = renderer.foreign(chat)
    assert found is not None
    assert unlimited.render(found) == renderer.render(chat)


@pytest.mark.parametrize("template", [None, "default"])
def test_chat_is_not_foreign_when_its_template_is_the_models(template: str | None) -> None:
    renderer = ChatRenderer({"default": ChatTemplate(ECHO)}, {})
    assert renderer.foreign(ChatPrompt(messages=(), template=template)) is None


@pytest.mark.parametrize(
    ("template", "message"),
    [
        pytest.param("\n{% if %}", "chat template line 2: ", id="broken"),
        pytest.param("\n{{ 1 + 'a' }}", "chat template raised TypeError in line 2", id="failing"),
        pytest.param(
            "{{ raise_exception('secret') }}", "chat template raised TemplateError in line 1", id="refusing"
        ),
    ],
)
def test_error_says_what_is_wrong_when_the_template_is(
    unlimited: TemplateProcess, template: str, message: str
) -> None:
    assert outcome(unlimited, template).startswith(message)
    assert outcome(unlimited, ECHO) == "[hi]"


def test_error_says_so_when_the_chat_is_nested_too_deeply(unlimited: TemplateProcess) -> None:
    deep: object = None
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(RenderError, match="RecursionError"):
        unlimited.render(foreign(variables={"deep": deep}))
    assert outcome(unlimited, ECHO) == "[hi]"


async def test_each_chat_gets_its_own_text_when_many_come_at_once(unlimited: TemplateProcess) -> None:
    chats = [foreign(f"{number % 5} {ECHO}", f"{number}") for number in range(50)]
    prompts = await asyncio.gather(*map(unlimited.rendered, chats))
    assert [prompt.text for prompt in prompts] == [f"{number % 5} [{number}]" for number in range(50)]


async def test_event_loop_is_not_blocked_while_a_template_renders(process: TemplateProcess) -> None:
    rendering = asyncio.create_task(process.rendered(foreign(TOO_LONG["sum_in_one_step"])))
    await until(lambda: process.pid, what="a process")
    assert not rendering.done()
    with pytest.raises(RenderError, match=r"^the process for the chat template took longer than 0.4 s$"):
        await rendering


async def test_next_chat_is_rendered_when_the_process_never_answers(process: TemplateProcess) -> None:
    await process.rendered(foreign())
    stopped = process.pid
    assert stopped is not None
    os.kill(stopped, signal.SIGSTOP)
    first, second = await asyncio.gather(
        process.rendered(foreign(content="x" * 2**20)), process.rendered(foreign()), return_exceptions=True
    )
    assert "took longer than 0.4 s" in str(first)
    assert not isinstance(second, BaseException)
    assert (second.text, alive(stopped)) == ("[hi]", False)


async def test_next_chat_is_rendered_when_the_process_is_killed_in_the_middle(
    unlimited: TemplateProcess,
) -> None:
    await unlimited.rendered(foreign())
    rendering = asyncio.create_task(unlimited.rendered(foreign(TOO_LONG["sum_in_one_step"])))
    other = asyncio.create_task(unlimited.rendered(foreign()))
    await until_busy(unlimited.pid)
    assert unlimited.pid is not None
    os.kill(unlimited.pid, signal.SIGKILL)
    with pytest.raises(RenderError, match=r"^the process for the chat template ended with status -9$"):
        await rendering
    assert (await other).text == "[hi]"


def test_chat_is_rendered_when_the_process_was_killed_before(unlimited: TemplateProcess) -> None:
    unlimited.render(foreign())
    killed = unlimited.pid
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    os.waitid(os.P_PID, killed, os.WEXITED | os.WNOWAIT)
    assert unlimited.render(foreign()).text == "[hi]"


async def test_chat_is_given_up_when_its_turn_does_not_come() -> None:
    with closing(TemplateProcess(render_s=60, wait_s=0.01)) as process:
        process.render(foreign())
        assert process.pid is not None
        os.kill(process.pid, signal.SIGSTOP)
        with pytest.raises(RenderError, match=r"^the chat template was not rendered within 0.01 s$"):
            await process.rendered(foreign())


async def test_process_is_ended_when_closed_in_the_middle() -> None:
    process = TemplateProcess(render_s=60, wait_s=60)
    process.render(foreign())
    pid = process.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    rendering = [asyncio.create_task(process.rendered(foreign())) for _ in range(3)]
    await asyncio.sleep(0)  # let each task submit its chat
    await asyncio.to_thread(process.close)
    assert (process.pid, alive(pid)) == (None, False)
    ended = await asyncio.gather(*rendering, return_exceptions=True)
    assert all(isinstance(each, RenderError | asyncio.CancelledError) for each in ended)


PARENT = """
import sys
from kvatlas.tokenization.chats.chat import ForeignChat
from kvatlas.tokenization.chats.conversation import Message
from kvatlas.tokenization.model import ChatPrompt
from kvatlas.tokenization.chats.template_process import TemplateProcess

process = TemplateProcess(render_s=60)
for template in sys.argv[1:]:
    chat = ForeignChat(ChatPrompt(messages=(Message(role="user"),), template=template), {}, None)
    process.render(chat)
    print(process.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
@pytest.mark.parametrize("templates", [[ECHO], [ECHO, TOO_LONG["sum_in_one_step"]]], ids=["idle", "busy"])
async def test_process_ends_when_its_parent_is_killed(templates: list[str]) -> None:
    parent = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PARENT,
        *templates,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert parent.stdout is not None
    pid = int(await parent.stdout.readline())
    assert alive(pid)
    if len(templates) > 1:
        await until_busy(pid)
    parent.kill()
    await parent.wait()
    await until(lambda: not alive(pid), what="the end of the process")


@pytest.mark.parametrize(
    ("executable", "message"),
    [
        pytest.param("/no/such/python", "cannot be started: ", id="no_such_file"),
        pytest.param("/bin/false", "ended with status 1$", id="it_ends_at_once"),
    ],
)
def test_error_says_why_when_the_process_cannot_start(
    unlimited: TemplateProcess, executable: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    with pytest.raises(RenderError, match=message):
        unlimited.render(foreign())
    assert unlimited.pid is None
    monkeypatch.undo()
    assert unlimited.render(foreign()).text == "[hi]"
