"""The scanner compared with prometheus_client's parser, and its limits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from kvatlas.fleet.scrape.errors import ScrapeError
from kvatlas.fleet.scrape.exposition import MAX_HITS, MAX_LINE_BYTES, NEAR_BYTES, Bookmark, Exposition

Series = tuple[dict[str, str], float]
NO_LABELS: dict[str, str] = {}

RECORDINGS = ("metrics_run1", "metrics_run4", "metrics_run5", "metrics_run7_dp", "metrics_run8")


def parsed_in_full(text: str) -> dict[str, list[Series]]:
    """Parse with the reference parser: sample name -> labels and value of each sample."""
    series: dict[str, list[Series]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            series.setdefault(sample.name, []).append((dict(sample.labels), sample.value))
    return series


def scanned(text: str, name: str) -> list[Series]:
    return [(sample.labels(), sample.value) for sample in Exposition(text.encode()).samples(name)]


def same(ours: list[Series], reference: list[Series]) -> bool:
    """Return whether two values are equal, with NaN equal to NaN."""
    return len(ours) == len(reference) and all(
        labels == wanted and (value == expected or (math.isnan(value) and math.isnan(expected)))
        for (labels, value), (wanted, expected) in zip(ours, reference, strict=True)
    )


@pytest.mark.parametrize("recording", RECORDINGS)
def test_every_series_of_a_recorded_body_is_read_as_the_reference_parser_reads_it(
    golden: Path, recording: str
) -> None:
    text = (golden / f"{recording}.txt").read_text()
    reference = parsed_in_full(text)

    assert len(reference) > 40
    for name, series in reference.items():
        assert same(scanned(text, name), series), name


@pytest.mark.parametrize(
    ("text", "series"),
    [
        pytest.param("m 1\n", [(NO_LABELS, 1.0)], id="no_labels"),
        pytest.param("m 1", [(NO_LABELS, 1.0)], id="no_line_end"),
        pytest.param("m\t1\r\n", [(NO_LABELS, 1.0)], id="tab_and_carriage_return"),
        pytest.param("m 1.5e3 1700000000000\n", [(NO_LABELS, 1500.0)], id="timestamp"),
        pytest.param("m{} 1\n", [(NO_LABELS, 1.0)], id="empty_labels"),
        pytest.param('m{a="b",} 1\n', [({"a": "b"}, 1.0)], id="comma_at_the_end"),
        pytest.param('m{ a = "b" , c = "d" } 1\n', [({"a": "b", "c": "d"}, 1.0)], id="blanks"),
        pytest.param('m {a="b"} 1\n', [({"a": "b"}, 1.0)], id="blank_before_the_labels"),
        pytest.param('m{a="} 2 m 3"} 1\n', [({"a": "} 2 m 3"}, 1.0)], id="braces_in_a_value"),
        pytest.param(r'm{a="\"\\n\n\x"} 1' + "\n", [({"a": '"\\n\n\\x'}, 1.0)], id="escapes"),
        pytest.param('m{a="é"} +Inf\n', [({"a": "é"}, math.inf)], id="utf8_and_infinity"),
        pytest.param("# HELP m m 3\n# TYPE m gauge\nm 1\n", [(NO_LABELS, 1.0)], id="help_and_type"),
        pytest.param("n 1\nm 2\nn 3\nm 4\n", [(NO_LABELS, 2.0), (NO_LABELS, 4.0)], id="not_in_one_group"),
        pytest.param("m_total 1\nm:x 2\nmm 3\n x m 4\n", [], id="other_names"),
        pytest.param("", [], id="empty"),
    ],
)
def test_series_is_found(text: str, series: list[Series]) -> None:
    assert scanned(text, "m") == series


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("m \n", "value of m is no number", id="no_value"),
        pytest.param("m one\n", "value of m is no number", id="word"),
        pytest.param("m 1_000\n", "value of m is no number", id="underscore"),
        pytest.param('m{a="b"}\n', "value of m is no number", id="labels_alone"),
        pytest.param('m{a="b} 1\n', "labels of m are malformed", id="open_quote"),
        pytest.param('m{a="b" 1\n', "labels of m are malformed", id="open_brace"),
        pytest.param("m{a=b} 1\n", "labels of m are malformed", id="no_quotes"),
        pytest.param('m{a="b" c="d"} 1\n', "labels of m are malformed", id="no_comma"),
        pytest.param('m{a="' + "x" * MAX_LINE_BYTES + '"} 1\n', "limit 65536", id="long_line"),
        pytest.param("m 1\n" * (MAX_HITS + 1), "more than 10000 lines begin with m", id="many_lines"),
        pytest.param(
            "mm 1\n" * (MAX_HITS + 1), "more than 10000 lines begin with m", id="many_lines_of_longer_names"
        ),
    ],
)
def test_unreadable_line_of_the_series_is_an_error(text: str, message: str) -> None:
    with pytest.raises(ScrapeError, match=message) as raised:
        Exposition(text.encode()).samples("m")

    assert raised.value.reason == "malformed"


def test_unreadable_lines_of_other_series_do_not_matter() -> None:
    assert scanned('n{a="\nn one\nm 1\n', "m") == [(NO_LABELS, 1.0)]


def test_bytes_that_are_no_utf8_are_replaced_in_labels() -> None:
    (sample,) = Exposition(b'm{a="\xff"} 1\n').samples("m")

    assert sample.labels() == {"a": "\ufffd"}


NAMES = st.from_regex(r"[a-c:_][a-c_]{0,2}", fullmatch=True)
VALUES = st.floats(width=32) | st.integers(-(10**9), 10**9)
LABELS = st.dictionaries(
    st.from_regex(r"[a-z][a-z0-9_]{0,3}", fullmatch=True),
    st.text(st.characters(codec="utf-8", exclude_characters="\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029")),
    max_size=3,
)


def written(name: str, labels: dict[str, str], value: float) -> str:
    """Draw one line as client libraries write it."""
    escaped = [
        '{}="{}"'.format(key, text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\""))
        for key, text in labels.items()
    ]
    block = "{" + ",".join(escaped) + "}" if escaped else ""
    number = repr(value).replace("inf", "Inf").replace("nan", "NaN")
    return f"{name}{block} {number}\n"


@given(st.dictionaries(NAMES, st.lists(st.tuples(LABELS, VALUES), min_size=1, max_size=4), max_size=5))
def test_generated_bodies_are_read_as_the_reference_parser_reads_them(body: dict[str, list[Series]]) -> None:
    text = "".join(written(name, labels, value) for name, series in body.items() for labels, value in series)

    reference = parsed_in_full(text)
    for name in body:
        assert same(scanned(text, name), reference[name])


@given(st.text(alphabet='m{}="\\a, \t\n1.eN+#', max_size=60).map(str.encode) | st.binary(max_size=60))
def test_any_bytes_are_samples_or_an_error(body: bytes) -> None:
    try:
        samples = Exposition(body).samples("m")
    except ScrapeError:
        return
    assert all(isinstance(label, str) for sample in samples for label in sample.labels())


# -- bookmarks ---------------------------------------------------------------------------------------------------------

FILLER = "".join(f"other_{number} 0.0\n" for number in range(NEAR_BYTES))


def followed(texts: Sequence[str]) -> list[list[Series]]:
    """Return what one bookmark finds in successive bodies."""
    bookmark = Bookmark("m")
    return [
        [(sample.labels(), sample.value) for sample in bookmark.samples(Exposition(text.encode()))]
        for text in texts
    ]


@pytest.mark.parametrize(
    ("texts", "values"),
    [
        pytest.param(("a 1\nm 1\n", "a 1\nm 2\n"), ([1], [2]), id="same_place"),
        pytest.param(("a 1\nm 1\n", "a 1000\nm 2\n", "a 1\nm 3\n"), ([1], [2], [3]), id="near"),
        pytest.param(("m 1\n", f"{FILLER}m 2\n", "m 3\n"), ([1], [2], [3]), id="far"),
        pytest.param(("m 1\n", "a 1\n", "m 2\n"), ([1], list[float](), [2]), id="gone_and_back"),
        pytest.param(("m 1\n", 'm{r="0"} 1\nm{r="1"} 2\n', "m 3\n"), ([1], [1, 2], [3]), id="more_and_fewer"),
        pytest.param(("m 1\na 1\nm 2\n", "m 3\na 1\nm 4\n"), ([1, 2], [3, 4]), id="not_in_one_group"),
        pytest.param(("m 1\n", "mm 2\nm 3\n"), ([1], [3]), id="longer_name_before"),
        pytest.param(("m 1\n", "m 2\nmm 3\n"), ([1], [2]), id="longer_name_behind"),
        pytest.param(
            (f'm{{r="{"x" * NEAR_BYTES}"}} 1\nm 2\n', f'a 1\nm{{r="{"x" * NEAR_BYTES}"}} 3\nm 4\n'),
            ([1, 2], [3, 4]),
            id="second_line_nearer_than_the_first",
        ),
    ],
)
def test_series_is_followed_through_changing_bodies(
    texts: Sequence[str], values: Sequence[list[float]]
) -> None:
    assert [[value for _, value in found] for found in followed(texts)] == list(values)


@given(bodies=st.lists(st.lists(st.tuples(NAMES, VALUES), max_size=8), min_size=1, max_size=5))
def test_series_in_groups_is_followed_as_if_each_body_were_searched(
    bodies: list[list[tuple[str, float]]],
) -> None:
    texts = ["".join(f"{name} {value}\n" for name, value in sorted(lines)) for lines in bodies]
    bookmarks = {name: Bookmark(name) for lines in bodies for name, _ in lines}

    for text in texts:
        exposition = Exposition(text.encode())
        for name, bookmark in bookmarks.items():
            assert repr(bookmark.samples(exposition)) == repr(exposition.samples(name))  # NaN equals NaN here
