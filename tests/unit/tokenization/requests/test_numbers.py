"""Lists of integers cut out of JSON: the numbers that a decoder reads, or none."""

from __future__ import annotations

import contextlib
import json
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.tokenization.requests.numbers import CutBody, NumberFields, cut_numbers

FIELDS = NumberFields(narrow=("ids",), wide=("hashes",))
LIMITS = {"ids": range(2**32), "hashes": range(-(2**63), 2**64)}

SEPARATORS = st.sampled_from([",", ", ", ",\n    ", " , ", "\t,\r\n"])
NUMBERS = st.one_of(
    st.integers(0, 2**17),
    st.integers(0, 21).flatmap(lambda n_digits: st.integers(0, 10**n_digits)),
    st.integers(0, 70).flatmap(lambda n_bits: st.integers(-(2**n_bits), 2**n_bits)),
)
ODD = st.sampled_from(
    ["", " ", "00", "01", "-", "-0", "1.5", "1e3", "1 2", "[", "]", "null", '"7"', "é", "\x00", "\xfa1"]
)


@st.composite
def long_lists(draw: st.DrawFn) -> str:
    """Write a list that is read in several steps, with at most one thing that does not belong there."""
    items = [str(number) for number in draw(st.lists(NUMBERS, min_size=1, max_size=60))]
    if draw(st.integers(0, 3)) == 0:
        items.insert(draw(st.integers(0, len(items))), draw(ODD))
    return f"[{draw(st.sampled_from(['', ' ', chr(10)]))}{draw(SEPARATORS).join(items)}]"


@given(name=st.sampled_from(sorted(LIMITS)), text=long_lists(), behind=st.integers(0, 80))
def test_list_is_cut_exactly_if_a_decoder_reads_numbers_that_fit(name: str, text: str, behind: int) -> None:
    body = f'{{"model": "m", "{name}": {text}{" " * behind}}}'.encode(errors="surrogatepass")
    values: list[Any] = []
    with contextlib.suppress(ValueError):
        values = json.loads(body)[name]
    fits = values and all(type(value) is int and value in LIMITS[name] for value in values)
    cut = cut_numbers(body, FIELDS)
    if fits and (name == "hashes" or "-" not in text):
        code = "I" if name == "ids" else "Q"
        assert cut == CutBody(
            f'{{"model": "m", "{name}": []{" " * behind}}}'.encode(),
            {name: array(code, [value % 2**64 for value in values])},
        )
    else:
        assert cut is None


@pytest.mark.parametrize("separator", [",", ", ", ",\n"])
@pytest.mark.parametrize("n_before", range(0, 70, 7))
def test_number_is_read_wherever_it_stands(separator: str, n_before: int) -> None:
    for number in (0, 7, 10, 128_000, 99_999_999, 100_000_000, 2**32 - 1):
        ids = [1] * n_before + [number] * 20
        cut = cut_numbers(f'{{"ids":[{separator.join(map(str, ids))}]}}'.encode(), FIELDS)
        assert cut is not None
        assert cut.lists["ids"].tolist() == ids


@pytest.mark.parametrize("number", ["4294967296", "18446744073709551615", "04", "1x", "1" * 17])
@pytest.mark.parametrize("at", [0, 5, 30])
def test_list_is_not_cut_if_a_number_does_not_fit(number: str, at: int) -> None:
    items = ["11"] * 40
    items[at] = number
    assert cut_numbers(f'{{"ids":[{",".join(items)}]}}'.encode(), FIELDS) is None
