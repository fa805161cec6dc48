"""YAML documents: accepted and rejected texts, and lines of keys."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.configs.document import Document, parse_document
from kvatlas.configs.errors import KeyPath, Problem


def parsed(text: str) -> Document:
    document = parse_document(text.encode())
    assert isinstance(document, Document)
    return document


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        pytest.param(b"", "the file is empty", id="empty"),
        pytest.param(b"# nothing\n", "the file is empty", id="comments_only"),
        pytest.param(
            b"a: 1\nb: 2\na: 3\n", "line 3: key 'a' is repeated, first on line 1; keep one", id="repeated"
        ),
        pytest.param(
            b"x:\n  - {a: 1, a: 2}\n", "line 2: key 'a' is repeated, first on line 2; keep one", id="nested"
        ),
        pytest.param(
            b"a:\n\tb: 1\n",
            "line 2: a tab where YAML allows spaces only; indent with spaces",
            id="tab_as_indent",
        ),
        pytest.param(
            b"a: [1, 2\nb: 3\n", "line 2: not valid YAML: expected ',' or ']', but got ':'", id="open_list"
        ),
        pytest.param(
            b"a: 1\n---\nb: 2\n", "line 2: not valid YAML: but found another document", id="two_documents"
        ),
        pytest.param(b"a: *b\n", "line 1: not valid YAML: found undefined alias 'b'", id="undefined_alias"),
        pytest.param(b"? [1]\n: 2\n", "line 1: not valid YAML: found unhashable key", id="list_as_key"),
        pytest.param(
            b"a: !!python/name:x 1\n", "line 1: not valid YAML: could not determine a constructor", id="tag"
        ),
        pytest.param(b"a: \xff\xfe\n", "not a UTF-8 text: invalid start byte at position", id="not_utf8"),
        pytest.param(
            b"a: \x00\n", "not a UTF-8 text: special characters are not allowed", id="control_character"
        ),
        pytest.param(
            b"a: 2024-99-99\n", "not a readable YAML value: month must be in 1..12", id="impossible_date"
        ),
        pytest.param(
            b'a: 1\nb: ["\\ud800"]\n',
            r"line 2: the text has \ud800, half of a character; write the whole character",
            id="lone_surrogate",
        ),
        pytest.param(b'a: 1\n"x\\ud83d": 2\n', r"line 2: the text has \ud83d, half", id="surrogate_in_a_key"),
        pytest.param(b'a: "x\\0y"\n', r"line 1: the text has \u0000, a zero byte; remove it", id="zero_byte"),
        pytest.param(b"a: !!bool x\n", "not a readable YAML value: one with a tag", id="tag_of_bool"),
        pytest.param(b"a: !!int ''\n", "not a readable YAML value: one with a tag", id="tag_of_int"),
        pytest.param(b"a: !!float ''\n", "not a readable YAML value: one with a tag", id="tag_of_float"),
        pytest.param(b"a: !!timestamp x\n", "not a readable YAML value: one with a tag", id="tag_of_time"),
        pytest.param(b"[" * 5000, "not a readable YAML value: maximum recursion depth", id="endless_nesting"),
    ],
)
def test_unreadable_text_is_one_clear_problem(raw: bytes, message: str) -> None:
    problem = parse_document(raw)

    assert isinstance(problem, Problem)
    assert str(problem).startswith(message)
    assert "\n" not in str(problem)


@pytest.mark.parametrize(
    ("path", "line"),
    [
        pytest.param((), 1, id="file"),
        pytest.param(("a",), 1, id="key"),
        pytest.param(("a", "b"), 2, id="nested_key"),
        pytest.param(("a", "b", 1), 4, id="list_entry"),
        pytest.param(("a", "b", 1, "c"), 4, id="key_in_entry"),
        pytest.param(("a", "b", 1, "missing"), 4, id="missing_key_is_where_its_mapping_is"),
        pytest.param(("a", "b", 7), 2, id="missing_entry_is_where_its_list_is"),
        pytest.param(("d", "e"), 5, id="key_below_a_scalar"),
    ],
)
def test_line_of_a_path(path: KeyPath, line: int) -> None:
    text = "a:\n  b:\n    - c: 1\n    - c: 2\nd: 3\n"

    assert parsed(text).line_of(path) == line


def test_merged_keys_are_not_repeated_keys() -> None:
    document = parsed("base: &base {a: 1}\nuse: {<<: *base, a: 2}\n")

    assert document.data == {"base": {"a": 1}, "use": {"a": 2}}


def test_an_alias_to_itself_is_a_document() -> None:
    assert isinstance(parse_document(b"a: &a [*a]\n"), Document)


@given(st.binary(max_size=80) | st.text(alphabet="ab:-[]{}&*!|>'\"\n\t #?,0", max_size=60).map(str.encode))
def test_any_bytes_are_a_document_or_a_problem(raw: bytes) -> None:
    assert isinstance(parse_document(raw), Document | Problem)
