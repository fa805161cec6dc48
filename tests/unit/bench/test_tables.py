"""Tables of figures as text."""

from __future__ import annotations

import pytest

from bench.common.tables import Cell, Table, grid, markdown, text_rows


def make_table(*rows: tuple[Cell, ...], name: str = "a", headings: tuple[str, ...] = ("", "us")) -> Table:
    return Table(name=name, title=f"Title of {name}", headings=headings, rows=rows)


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        pytest.param(None, "-", id="not_measured"),
        pytest.param("reached", "reached", id="text"),
        pytest.param(1234567, "1,234,567", id="count"),
        pytest.param(1234.5, "1,234", id="all_digits_before_the_point"),
        pytest.param(123.4, "123", id="three_digits"),
        pytest.param(12.34, "12.3", id="one_decimal"),
        pytest.param(0.126, "0.13", id="two_decimals"),
        pytest.param(-0.5, "-0.50", id="negative"),
        pytest.param((2.0, 1234.5), "2.00 (1,234)", id="median_and_p99"),
    ],
)
def test_cell_shows_three_digits_that_count(cell: Cell, text: str) -> None:
    assert text_rows(make_table(("row", cell))) == [["row", text]]


def test_markdown_has_the_title_above_labels_and_figures_to_the_right() -> None:
    assert markdown(make_table(("row", 1.5))) == "| Title of a | us |\n| --- | ---: |\n| row | 1.50 |"
    assert markdown(make_table(headings=("tokens", "ms"))) == "| tokens | ms |\n| --- | ---: |"


def test_grid_puts_tables_with_the_same_columns_on_one_screen() -> None:
    tables = [
        make_table(("row", 1.5)),
        make_table(("row", 1), ("row", 2), name="b"),
        make_table(headings=("x",)),
    ]
    assert [shown.row_count for shown in grid(tables)] == [5, 1]
    assert list(grid([])) == []
