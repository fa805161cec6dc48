from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
from jinja2 import ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from kvatlas.tokenization.chats import time_bound
from kvatlas.tokenization.chats.chat import ChatTemplate
from kvatlas.tokenization.chats.sandbox import wants_system_first
from kvatlas.tokenization.errors import RenderError

LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
TWICE = "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}"
CALLED = "{% macro m(n) %}{% if n %}{% call m(n - 1) %}{% endcall %}{% call m(n - 1) %}{% endcall %}{% endif %}{{ caller() if caller }}{% endmacro %}"
BLOCK = (
    "{% set ns = namespace(d=0) %}{% block b %}{% set ns.d = ns.d + 1 %}{% if ns.d < 60 %}{{ self.b() }}{{ self.b() }}"
    "{% endif %}{% set ns.d = ns.d - 1 %}{% endblock %}"
)


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(LOOP, id="nested_empty_loops"),
        pytest.param("{% macro m() %}" + LOOP + "{% endmacro %}{{ m() }}", id="loops_in_a_macro"),
        pytest.param("{% set x %}" + LOOP + "{% endset %}", id="loops_in_an_assignment"),
        pytest.param("{% filter upper %}" + LOOP + "{% endfilter %}", id="loops_in_a_filter_block"),
        pytest.param("{% generation %}" + LOOP + "{% endgeneration %}", id="loops_in_a_generation_block"),
        pytest.param(
            "{% for x in messages %}{% block b scoped %}" + LOOP + "{% endblock %}{% endfor %}",
            id="loops_in_a_scoped_block",
        ),
        pytest.param(
            LOOP.replace("b in range(99999)", "b in range(99999) if false"), id="loops_that_take_no_item"
        ),
        pytest.param(
            "{% for a in range(99999) %}{% for b in range(99999) %}{{ loop.index if loop.last }}{% endfor %}{% endfor %}",
            id="loops_that_know_their_length",
        ),
        pytest.param(
            "{% for a in messages %}{% for b in messages %}{% endfor %}{% endfor %}", id="quadratic"
        ),
        pytest.param(
            "{% for a in messages %}{% for b in [1, 2] %}{% for c in messages %}{% endfor %}{% endfor %}{% endfor %}",
            id="short_lists_among_long_ones",
        ),
        pytest.param(
            "{% for a in messages if a in messages[-9999:] | map('upper') | list %}{% endfor %}",
            id="quadratic_condition",
        ),
        pytest.param(TWICE + "{{ m(60) }}", id="macro_that_calls_itself_twice"),
        pytest.param(CALLED + "{{ m(60) }}", id="call_block_that_calls_itself_twice"),
        pytest.param(
            "{% for a in [1] recursive %}{{ (loop([1, 1]) ~ loop([1])) if loop.depth < 60 }}{% endfor %}",
            id="recursive_loop",
        ),
        pytest.param(BLOCK, id="block_that_calls_itself_twice"),
        pytest.param(
            "{{ ([messages] * 99999) | map('map', 'upper') | map('list') | list | length }}",
            id="map_of_maps",
        ),
        pytest.param(
            "{{ ([range(999)] * 999999) | map('select', 'odd') | map('list') | list | length }}",
            id="map_of_selects",
        ),
        pytest.param(
            "{{ ([range(999)] * 999999) | map('reject', 'odd') | map('sum') | select | list | length }}",
            id="map_of_rejects",
        ),
    ],
)
def test_render_error_is_raised_when_a_template_takes_too_long(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_bound, "MAX_RENDER_S", 0.02)
    template = ChatTemplate(source)
    with pytest.raises(RenderError, match=r"^chat template took longer than 0.02 s in line 1$"):
        template.render({"messages": ["a"] * 20_000})


def test_steps_before_the_first_check_count_when_they_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_bound, "MAX_RENDER_S", 0.02)
    n_steps = time_bound.STEPS_PER_CHECK + 1
    template = ChatTemplate(
        "{% for a in range(" + str(n_steps) + ") %}{% set n = messages | sum %}{% endfor %}"
    )
    with pytest.raises(RenderError, match=r"took longer than 0.02 s in line 1$"):
        template.render({"messages": list(range(20_000))})


def test_render_error_names_the_line_when_a_template_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_bound, "MAX_RENDER_S", 0.02)
    with pytest.raises(RenderError, match=r"took longer than 0.02 s in line 3$"):
        ChatTemplate("{% macro m() %}\n\n" + LOOP + "{% endmacro %}\n\n{{ m() }}").render({})


def test_engines_probe_ends_when_the_template_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_bound, "MAX_RENDER_S", 0.02)
    assert wants_system_first(LOOP)


def test_time_is_that_of_one_rendering_when_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    template = ChatTemplate("{% for a in range(2000) %}{% endfor %}{{ messages | length }}")
    monkeypatch.setattr(time_bound, "MAX_RENDER_S", 0.0)
    with pytest.raises(RenderError, match="took longer"):
        template.render({"messages": []})
    monkeypatch.undo()
    assert template.render({"messages": [1]}) == "1"


@pytest.mark.parametrize(
    "source",
    [
        "{% for x in numbers %}{{ loop.index }}/{{ loop.length }}{{ loop.last }}{{ loop.nextitem }}{{ loop.previtem }};{% endfor %}",
        "{% for x in numbers | map('string') %}{{ loop.index }}/{{ loop.length }}{{ loop.last }}{{ loop.revindex }};{% endfor %}",
        "{% for x in numbers if x is odd %}{{ x }}{{ loop.first }}{% else %}none{% endfor %}",
        "{% for x in numbers if x > 99 %}{{ x }}{% else %}none{% endfor %}",
        "{% for x in gone %}{{ x }}{% else %}none{% endfor %}",
        "{% for k in table %}{{ k }}{% endfor %}{% for k, v in table.items() %}{{ k }}={{ v }}{% endfor %}",
        "{% for x in 'text' %}{{ x }}{% if x == 'x' %}{% break %}{% endif %}{% endfor %}",
        "{% for x in numbers %}{% if x == 2 %}{% continue %}{% endif %}{{ x }}{{ loop.cycle('a', 'b') }}{{ loop.changed(x) }}{% endfor %}",
        "{% for x in [[1], [[2]]] recursive %}({{ loop.depth }}{{ loop(x) if x is iterable else x }}){% endfor %}",
        "{% for x in 5 %}{% endfor %}",
        "{% for x in ['1', 'a'] | map('int', default=none) %}{{ x + 1 }}{% endfor %}",
        "{% for a, b in [[1, 2], [3]] %}{{ a }}{{ b }}{% endfor %}",
        "{% macro m(x, y='d') %}<{{ x }}{{ y }}{{ caller() if caller }}>{% endmacro %}{{ m(1) }}{% call m(2, y=3) %}c{% endcall %}",
        "{% block b scoped %}{{ numbers }}{% endblock %}{{ self.b() }}",
        "{% set ns = namespace(n=0) %}{% for x in numbers %}{% set ns.n = ns.n + x %}{% endfor %}{{ ns.n }}",
        "{{ numbers | map('string') | join('-') }}{{ numbers | select('odd') | list }}{{ numbers | reject | list }}",
        "{{ numbers | map('absent') | list }}",
        "{{ " + " ~ ".join(["numbers"] * 150) + " }}",
    ],
)
def test_text_is_that_of_jinja_without_a_bound(source: str) -> None:
    variables: dict[str, Any] = {"numbers": [1, 2, 3], "table": {"a": 1, "b": 2}}
    plain = ImmutableSandboxedEnvironment(extensions=[ext.loopcontrols])
    try:
        text = plain.from_string(source).render(variables)
    except Exception as error:  # noqa: BLE001 - whatever it is, it must be the same
        with pytest.raises(RenderError, match=f"raised {type(error).__name__} in line 1"):
            ChatTemplate(source).render(variables)
    else:
        assert ChatTemplate(source).render(variables) == text


class Held(dict[str, str]):
    """A message that can be observed with a weak reference."""


def test_prompt_is_freed_with_its_rendering_when_the_template_has_macros() -> None:
    template = ChatTemplate(
        "{% macro m() %}{% endmacro %}{% for a in messages %}{{ a.role }}{{ m() }}{% endfor %}"
    )
    message = Held(role="user")
    freed = weakref.ref(message)
    gc.disable()
    try:
        assert template.render({"messages": [message]}) == "user"
        del message
        assert freed() is None
    finally:
        gc.enable()
