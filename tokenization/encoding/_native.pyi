from collections.abc import Sequence
from typing import TypeAlias, final

Element: TypeAlias = tuple[int, int, int, int, bool] | tuple[int, Sequence[Sequence[int]], int]
Stage: TypeAlias = tuple[bool, Sequence[Sequence[Element]]]

def json_cost(json: bytes, container: int) -> int: ...

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
