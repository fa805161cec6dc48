from ..http2._native import Passage

def read_message(
    data: bytes, max_headers: int
) -> tuple[str, int, bool, bytes, dict[str, str], int, tuple[int, int] | None, bytes | None] | None: ...
def response_passage(
    *,
    gives_back: bool,
    has_begun: bool,
    leaves_end: bool,
    reads: int,
    is_skipping: bool,
    held: bytes,
) -> Passage: ...
