from collections.abc import Sequence
from typing import TypeAlias, final

Element: TypeAlias = tuple[int, int, int, int, bool] | tuple[int, Sequence[Sequence[int]], int]
Stage: TypeAlias = tuple[bool, Sequence[Sequence[Element]]]

def json_cost(json: bytes, container: int) -> int: ...

# The text with `[]` in place of each list that was cut, and the lists' numbers in the order of the names (None: not cut). None
# if nothing was cut, or a decoder must judge the text.
def json_numbers(
    json: bytes | bytearray, narrow: Sequence[str], wide: Sequence[str]
) -> tuple[bytes, list[bytes | None]] | None: ...

# The varints of a packed protobuf field as numbers of 4 or 8 bytes; None if a decoder must judge them.
def packed_numbers(packed: bytes, item_size: int) -> bytes | None: ...

@final
class Cutter:
    def __new__(cls, *, tokens: Sequence[str], letters: bytes, followers: str) -> Cutter: ...
    def segments(self, text: str, size: int) -> list[str]: ...

@final
class Encoder:
    def __new__(
        cls,
        *,
        known: bytes,
        inert: bytes,
        classes: Sequence[bytes],
        stages: Sequence[Stage],
        vocabulary: dict[str, int],
        merges: Sequence[tuple[str, str]],
        whole_words: bool,
        literal: Sequence[tuple[str, int]],
        normalized: Sequence[tuple[str, int]],
    ) -> Encoder: ...
    def encode(self, texts: Sequence[str], normalized: bool) -> list[bytes | None]: ...
