from __future__ import annotations

import pytest

from kvatlas.tokenization.chats.chat import ChatTemplate
from kvatlas.tokenization.chats.sandbox import MAX_RENDERED_CHARS
from kvatlas.tokenization.errors import RenderError


def rendered(source: str) -> str:
    return ChatTemplate(source).render({"messages": [{"role": "user", "content": "hi"}], "tools": None})


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ ''['__class__'] }}",
        "{{ messages.__class__ }}",
        "{{ messages | attr('__class__') }}",
        "{{ '{0.__class__}'.format(messages) }}",
        "{{ ('{0.__class__.__init__}' | attr('format'))(messages) }}",
        "{{ (['{0.__class__}'] | map('format', messages) | list)[0].__class__ }}",
        "{{ lipsum.__globals__ }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__closure__ }}",
        "{{ self.__init__ }}",
        "{{ self._TemplateReference__context }}",
        "{{ dict.mro() }}",
        "{{ dict.__subclasses__() }}",
        "{{ (messages | map('upper')).gi_frame }}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}{{ ns.__class__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({}) }}",
        "{{ messages.clear() }}",
        "{% include 'x' %}",
        "{% import 'os' as os %}",
        "{% extends 'x' %}",
        "{{ messages | map(attribute='__class__') | list }}",
        "{{ messages | selectattr('__class__') | map(attribute='__class__.__base__') | list }}",
        "{{ messages | groupby('__class__') }}",
        "{{ messages | sort(attribute='__class__') }}",
        "{{ messages | sum(attribute='__class__', start='') }}",
        "{{ [messages] | map('attr', '__class__') | list }}",
        "{{ '%(a)s' | format(a=messages.__class__) }}",
        "{{ ''.join.__self__.__class__ }}",
        "{{ ''.format_map({'a': messages}) }}",
        "{{ '{a.__class__}'.format_map({'a': messages}) }}",
        "{{ caller.__globals__ }}{{ loop.__class__ }}",
        "{% for m in messages %}{{ loop._iterator.gi_frame }}{% endfor %}",
        "{% macro m() %}{% endmacro %}{{ m._func.__globals__ }}",
        "{{ joiner('a').__call__.__func__.__globals__ }}",
        "{{ self._TemplateReference__context.environment }}",
        "{{ raise_exception.__defaults__ }}{{ strftime_now.__code__ }}",
        "{% set x = messages[0] %}{% do x.update({}) %}",
        "{{ messages[0].setdefault('x', 1) }}",
        "{{ messages.sort() }}{{ messages.reverse() }}{{ messages.extend([1]) }}",
    ],
)
def test_nothing_of_python_is_reached_when_a_template_tries_to_escape(source: str) -> None:
    try:
        text = rendered(source)
    except RenderError:
        return
    assert not any(trace in text for trace in ("<class", "<function", "<bound", "<built-in", " object at 0x"))


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' * 10**9 }}",
        "{{ 10**9 * 'a' }}",
        "{{ [0] * 10**9 }}",
        "{{ (1, 2) * 10**8 }}",
        "{{ 9 ** (10**9) }}",
        "{{ 2 ** -5000 }}",
        "{{ range(10**9) }}",
        "{{ ('a' * 10**6) * 10**6 }}",
        "{{ range(99999) | list * 99999 }}",
    ],
)
def test_render_error_is_raised_when_one_expression_would_be_huge(source: str) -> None:
    with pytest.raises(RenderError, match=r"SecurityError|OverflowError"):
        rendered(source)


def test_render_error_is_raised_when_a_template_writes_without_end() -> None:
    source = "{% for i in range(99999) %}{% for j in range(99999) %}{{ 'a' * 10000 }}{% endfor %}{% endfor %}"
    with pytest.raises(RenderError, match=f"wrote more than {MAX_RENDERED_CHARS} characters"):
        rendered(source)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        pytest.param("{{ 3 * 4 }}{{ 'ab' * 2 }}{{ 2 ** 10 }}{{ 2.5 * 2 }}", "12abab10245.0", id="operators"),
        pytest.param("{% if true %}\n  x\n{% endif %}\n", "  x\n", id="blocks_leave_no_lines"),
        pytest.param(
            "{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}",
            "01",
            id="break",
        ),
        pytest.param("a{% generation %}\nb{% endgeneration %}c", "abc", id="generation"),
        pytest.param("{{ {'k': 'é<>&'} | tojson }}", '{"k": "é<>&"}', id="tojson"),
        pytest.param("{{ [1, {}] | tojson(indent=1) }}", "[\n 1,\n {}\n]", id="tojson_indented"),
        pytest.param("{{ gone }}{{ tools is none }}{{ gone is defined }}", "TrueFalse", id="undefined"),
    ],
)
def test_template_renders_when_it_uses_what_chat_templates_use(source: str, text: str) -> None:
    assert rendered(source) == text
