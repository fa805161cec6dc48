"""Detection of the content format.

vLLM 0.32.0 detects the same formats for these templates, except for `renamed_in_a_circle`, on which it loops forever.
"""

from __future__ import annotations

import pytest
from jinja2 import Environment

from kvatlas.tokenization.chats.content_format import wants_content_parts


def wants_parts(source: str) -> bool:
    return wants_content_parts(Environment(autoescape=True).parse(source))


LOOP = "{% for m in messages %}BODY{% endfor %}"


def in_loop(body: str) -> str:
    return LOOP.replace("BODY", body)


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(in_loop("{% for p in m.content %}{% endfor %}"), id="attribute"),
        pytest.param(in_loop("{% for p in m['content'] %}{% endfor %}"), id="item"),
        pytest.param(in_loop("{% for p in m.content | list %}{% endfor %}"), id="filtered"),
        pytest.param(in_loop("{% for p in m['content'][1:] %}{% endfor %}"), id="sliced"),
        pytest.param(
            in_loop("{% if x %}{% for p in m.content %}{% endfor %}{% endif %}"), id="in_a_condition"
        ),
        pytest.param(
            "{% for m in messages[1:] %}{% for p in m.content %}{% endfor %}{% endfor %}",
            id="sliced_messages",
        ),
        pytest.param(
            "{% set a = messages %}{% set b = a[1:] %}{% for m in b %}{% for p in m.content %}{% endfor %}{% endfor %}",
            id="renamed_messages",
        ),
        pytest.param(
            "{% set a = b %}{% set b = messages %}{% set b = a %}"
            "{% for m in a %}{% for p in m.content %}{% endfor %}{% endfor %}",
            id="renamed_in_a_circle",
        ),
        pytest.param(
            in_loop("{% set content = m.content %}{% for p in content %}{% endfor %}"), id="called_content"
        ),
        pytest.param(
            "{% macro show(x) %}{% for p in x %}{% endfor %}{% endmacro %}"
            + in_loop("{{ show(m.content) }}"),
            id="macro_by_position",
        ),
        pytest.param(
            "{% macro show(a, x) %}{% for p in x %}{% endfor %}{% endmacro %}"
            + in_loop("{{ show(x=m['content']) }}"),
            id="macro_by_name",
        ),
        pytest.param(
            "{% macro show(x) %}{% macro part(y) %}{% for p in x %}{% endfor %}{% endmacro %}{% endmacro %}"
            + in_loop("{{ show(m.content) }}"),
            id="macro_in_a_macro",
        ),
    ],
)
def test_parts_are_wanted_when_the_template_loops_over_a_messages_content(source: str) -> None:
    assert wants_parts(source)


@pytest.mark.parametrize(
    "source",
    [
        pytest.param("", id="empty"),
        pytest.param(in_loop("{{ m.content }}"), id="printed"),
        pytest.param(in_loop("{% for p in m.tool_calls %}{% endfor %}"), id="other_list"),
        pytest.param(in_loop("{% set x = m.content %}{% for p in x %}{% endfor %}"), id="renamed_content"),
        pytest.param("{% for p in other.content %}{% endfor %}", id="no_message"),
        pytest.param(
            "{% macro show(content) %}{% for p in content %}{% endfor %}{% endmacro %}", id="macro_not_called"
        ),
        pytest.param(
            "{% macro show(content) %}{% for p in content %}{% endfor %}{% endmacro %}"
            + in_loop("{{ show(m.name) }}"),
            id="macro_of_something_else",
        ),
        pytest.param(
            "{% macro show(x) %}{% for p in x %}{% endfor %}{% endmacro %}"
            + in_loop("{{ other(m.content) }}"),
            id="other_macro",
        ),
        pytest.param(in_loop("{% for a, b in m.content %}{% endfor %}"), id="pairs"),
        pytest.param(
            "{% for a, b in messages %}{% endfor %}" + in_loop("{% for p in m.content %}{% endfor %}"),
            id="pairs_of_messages",
        ),
        pytest.param(
            "{% set ns.a = messages %}" + in_loop("{% for p in m.content %}{% endfor %}"),
            id="messages_in_a_namespace",
        ),
        pytest.param("{% filter upper %}{% for p in x %}{% endfor %}{% endfilter %}", id="filter_block"),
    ],
)
def test_a_string_is_wanted_when_the_template_has_no_such_loop(source: str) -> None:
    assert not wants_parts(source)
