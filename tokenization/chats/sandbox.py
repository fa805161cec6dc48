"""The Jinja environment in which chat templates run.

Templates come from model repositories and requests and are not trusted. They run in Jinja's immutable sandbox, get only
JSON values and a few functions, and have bounded output and time. A sandbox inside the process cannot bound the memory of
one expression, nor the time of one without a Python loop. So this process runs only templates that the operator chose;
`template_process` runs those from requests.
Source of the environment's settings: transformers 5.19 utils/chat_template_utils.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence, Sized
from datetime import datetime
from types import CodeType
from typing import NoReturn

from jinja2 import Template, ext, nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.nodes import EvalContext
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

from .time_bound import TimedContext, compile_timed

MAX_RENDERED_CHARS = 16 * 2**20
"""Longest text that a template may write: four times a prompt of one million tokens of four characters."""

MAX_EXPONENT = 1024
"""Largest exponent of `**`; no chat template needs one."""


class Sandbox(ImmutableSandboxedEnvironment):
    """Immutable sandbox that bounds the rendering time, and the results of the operators `*` and `**`."""

    intercepted_binops = frozenset({"*", "**"})
    context_class: type[Context] = TimedContext

    def _compile(self, source: str, filename: str) -> CodeType:
        return compile_timed(source, filename)

    def _filter_test_common(
        self,
        name: str | Undefined,
        value: object,
        args: Sequence[object] | None,
        kwargs: Mapping[str, object] | None,
        context: Context | None,
        eval_ctx: EvalContext | None,
        is_filter: bool,  # noqa: FBT001 - Jinja passes it by position
    ) -> object:
        """Apply `map`, `select` or a similar filter to one item, and count a step."""
        if isinstance(context, TimedContext):
            context.stopwatch.step()
        return super()._filter_test_common(name, value, args, kwargs, context, eval_ctx, is_filter)

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        """Compute `left operator right`, unless the result would be huge."""
        if operator == "**" and isinstance(right, int) and abs(right) > MAX_EXPONENT:
            raise SecurityError(f"exponent {right} is above {MAX_EXPONENT}")
        if operator == "*":
            for sequence, count in ((left, right), (right, left)):
                if isinstance(sequence, Sized) and isinstance(count, int):
                    _check_repetition(len(sequence), count)
        return super().call_binop(context, operator, left, right)


def compile_template(source: str, *, now: Callable[[], datetime]) -> tuple[Template, nodes.Template]:
    """Compile `source` to a runnable template and its syntax tree.

    Args:
        source: template text.
        now: returns the local time for `strftime_now`.

    Raises:
        jinja2.TemplateSyntaxError: `source` is not a valid template.
    """

    def strftime_now(format: str) -> str:  # noqa: A002 - templates may pass it by this name
        return now().strftime(format)

    sandbox = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, ext.loopcontrols])
    sandbox.filters["tojson"] = _to_json
    functions = {"raise_exception": _raise_exception, "strftime_now": strftime_now}
    template = sandbox.from_string(source, globals=functions)
    template.globals = dict(template.globals)  # copied per rendering; a ChainMap takes ten times as long
    return template, sandbox.parse(source)


def wants_system_first(source: str) -> bool:
    """Return whether the engine assumes that this template accepts only a first message as system message.

    The engine tries a conversation with a second system message in an environment without most extensions of chat
    templates. So templates that call `raise_exception` or `strftime_now`, or have `generation` blocks, count too.
    Source: vLLM 0.32 entrypoints/anthropic/serving.py.
    """
    bare = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[ext.loopcontrols])
    messages = [{"role": role, "content": "t"} for role in ("system", "user", "system", "user")]
    try:
        bare.from_string(source).render(messages=messages, add_generation_prompt=False)
    except Exception:  # noqa: BLE001 - a template can raise anything; on errors other than Jinja's the engine does not start
        return True
    return False


class _GenerationTag(ext.Extension):
    """Tag `{% generation %}`, which marks the assistant's text for training; here it only renders its body."""

    tags = {"generation"}  # noqa: RUF012 - the base declares an instance attribute

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Macro) -> str:
        return caller()


def _check_repetition(length: int, count: int) -> None:
    if length * count > MAX_RENDERED_CHARS:
        raise SecurityError(f"a sequence of {length * count} elements is above {MAX_RENDERED_CHARS}")


def _to_json(
    value: object,
    ensure_ascii: bool = False,  # noqa: FBT001,FBT002 - templates may pass these by position
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001,FBT002
) -> str:
    """Encode as JSON without the HTML escapes of Jinja's own filter."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)
