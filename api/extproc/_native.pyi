from ..http2._native import Passage

def response_passage(
    *, gives_back: bool, has_begun: bool, reads: int, is_skipping: bool, held: bytes
) -> Passage: ...
