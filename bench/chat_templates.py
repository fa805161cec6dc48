"""What the bound on the time of chat templates costs, how long good ones take, and the process for those out of requests.

Use: python -m bench.chat_templates [--rounds 300]

Bounded and unbounded renderings take turns, in CPU time of the thread; the process is timed on the wall, and beside it a
template that is compiled and rendered in this process.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from jinja2 import Environment, Template
from jinja2.runtime import Context

from kvatlas.tokenization.chats.chat import ChatRenderer, ChatTemplate, ForeignChat
from kvatlas.tokenization.chats.conversation import Message
from kvatlas.tokenization.chats.sandbox import Sandbox
from kvatlas.tokenization.chats.template_process import TemplateProcess
from kvatlas.tokenization.errors import RenderError
from kvatlas.tokenization.model import ChatPrompt

CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CHARS_A_MESSAGE = 1_518
TEMPLATES = Path(__file__).parents[1] / "tests" / "golden" / "transformers-5.19.0" / "templates"
LONGEST = 4_000
CALL = {"id": "call00000", "type": "function", "function": {"name": "f", "arguments": '{"a": "b"}'}}


class Unbounded(Sandbox):
    """The sandbox without the bound on time."""

    context_class = Context
    _compile = Environment._compile  # noqa: SLF001 - Jinja's hook, as it was


def messages(number: int, n_chars: int = CHARS_A_MESSAGE) -> list[Message]:
    """Turns of a user, a call of a tool, its answer, and the assistant's."""
    text = "x" * n_chars
    turn = [
        Message(role="user", content=text),
        Message(role="assistant", content="", tool_calls=[CALL]),
        Message(role="tool", content=text, tool_call_id="call00000", name="f"),
        Message(role="assistant", content=text),
    ]
    return (turn * (number // len(turn) + 1))[:number]


def thread_us(work: Callable[[], object]) -> float:
    started = time.thread_time_ns()
    work()
    return (time.thread_time_ns() - started) / 1e3


def wall_ms(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return (time.perf_counter() - started) * 1e3


def bench_bound(number: int, rounds: int) -> None:
    """Prints the least times for `number` messages, their ratio, and that of the medians."""
    entries = [{"role": each.role, "content": "x" * CHARS_A_MESSAGE} for each in messages(number)]
    unbounded, bounded = (made(trim_blocks=True).from_string(CHATML) for made in (Unbounded, Sandbox))

    def took(template: Template) -> float:
        return thread_us(lambda: list(template.generate(messages=entries, add_generation_prompt=True)))

    pairs = [(took(unbounded), took(bounded)) for _ in range(rounds * 10)]
    plain, timed = zip(*pairs, strict=True)
    ratio = statistics.median(timed) / statistics.median(plain)
    print(f"{number:10}{min(plain):14.1f}{min(timed):12.1f}{min(timed) / min(plain):8.3f}{ratio:12.3f}")


def bench_golden(file: Path) -> None:
    """Prints how long one template takes for a long chat."""
    tokens = {"bos_token": "<s>", "eos_token": "</s>"}
    renderer = ChatRenderer({"default": ChatTemplate(file.read_text())}, tokens)
    chat = ChatPrompt(messages=tuple(messages(LONGEST, 1_000)))
    try:
        took = min(thread_us(lambda: renderer.render(chat)) for _ in range(3))
    except RenderError:
        print(f"{file.stem:20}{'refuses it':>14}")
    else:
        print(f"{file.stem:20}{took / 1e3:14.1f}")


def bench_process(number: int) -> None:
    """Prints how long the process takes for `number` messages."""
    renderer = ChatRenderer({}, {})
    source = (TEMPLATES / "thinking.jinja").read_text()
    chat = ChatPrompt(messages=tuple(messages(number)), template=source)
    foreign = ForeignChat(chat, {}, content_parts=None)
    with closing(TemplateProcess(render_s=60, wait_s=60)) as process:
        first = wall_ms(lambda: process.render(foreign))
        after = statistics.median(wall_ms(lambda: process.render(foreign)) for _ in range(50))
    here = statistics.median(wall_ms(lambda: renderer.render(chat)) for _ in range(10))
    print(f"{number:10}{first:10.0f}{after:10.2f}{here:28.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=300)
    rounds = parser.parse_args().rounds
    print(f"{'messages':>10}{'unbounded µs':>14}{'bounded µs':>12}{'ratio':>8}{'of medians':>12}")
    for number in (1, 64, 282, 1_000):
        bench_bound(number, rounds)
    print(f"\n{'template':20}{'ms of CPU time':>14}, {LONGEST} messages of 1,000 characters")
    for file in sorted(TEMPLATES.glob("*.jinja")):
        bench_golden(file)
    print(f"\n{'messages':>10}{'start ms':>10}{'next ms':>10}{'compiled here each time ms':>28}")
    for number in (4, 282):
        bench_process(number)


if __name__ == "__main__":
    main()
