from __future__ import annotations

import pytest

from kvatlas.fleet.kubernetes.client.errors import MalformedError
from kvatlas.fleet.kubernetes.client.lines import Lines


def test_lines_are_given_back_whole_when_cut_anywhere() -> None:
    lines = Lines(max_bytes=6)
    assert [lines.feed(piece) for piece in (b"ab", b"c\nde", b"", b"\n\nfgh", b"ijk\n")] == [
        [],
        [b"abc"],
        [],
        [b"de"],
        [b"fghijk"],
    ]
    lines.feed(b"\nx")
    with pytest.raises(MalformedError, match="more than 6 bytes"):
        lines.feed(b"123456")


def test_line_is_begun_until_its_end_comes() -> None:
    lines = Lines()
    begun = [lines.inside]
    for piece in (b"a", b"b\n", b"c"):
        lines.feed(piece)
        begun.append(lines.inside)
    assert begun == [False, True, False, True]
