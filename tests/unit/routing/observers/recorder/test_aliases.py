from __future__ import annotations

import hashlib
from array import array
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.routing.errors import RecorderError
from kvatlas.routing.observers.recorder.aliases import BlockAliases, block_aliases

ONE, OTHER = BlockAliases(bytes(32)), BlockAliases(b"\1" * 32)
keys = st.lists(st.integers(0, 2**64 - 1), max_size=40)


@given(first=keys, second=keys)
def test_alias_depends_on_its_own_key_alone(first: list[int], second: list[int]) -> None:
    both = ONE.of(array("Q", first + second))

    assert both == ONE.of(array("Q", first)) + ONE.of(array("Q", second))
    assert len(set(both)) == len(set(first + second))
    assert all(0 <= alias < 2**53 for alias in both)


@given(keys=keys.filter(bool))
def test_secrets_have_no_alias_in_common_and_none_is_the_key(keys: list[int]) -> None:
    assert not set(ONE.of(array("Q", keys))) & set(OTHER.of(array("Q", keys)))
    assert not set(ONE.of(array("Q", keys))) & {key >> 11 for key in keys}


def test_aliases_are_made_anew_without_file_and_the_same_with_one(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("0123456789abcdef\n")
    some = array("Q", [7])

    assert block_aliases("").of(some) != block_aliases("").of(some)
    assert block_aliases(str(file)).of(some) == block_aliases(str(file)).of(some)
    secret = hashlib.blake2b(b"0123456789abcdef", digest_size=32).digest()
    assert block_aliases(str(file)).of(some) == BlockAliases(secret).of(some)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(None, r"recorder.keyFile: .*key cannot be read: No such file", id="absent"),
        pytest.param("short\n", "holds 5 bytes, want 16 or more", id="short"),
    ],
)
def test_file_that_is_no_secret_is_refused(content: str | None, message: str, tmp_path: Path) -> None:
    file = tmp_path / "key"
    if content is not None:
        file.write_text(content)

    with pytest.raises(RecorderError, match=message):
        block_aliases(str(file))
