"""Time of the native encoder beside that of the library, for the same texts in turns.

Use: python -m bench.encoding [--rounds 200] [--chars 8192]

Texts are out of Python's standard library, of a vocabulary of 32,000; CPU time of one thread. *New* is a part that no encoder of
the process has seen, *again* the same part once more.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from functools import partial

from tokenizers import Tokenizer

from kvatlas.api.tokenization.byte_pairs import byte_pair_encoder
from kvatlas.api.tokenization.segment_encoder import ID_BYTES, encode_texts
from kvatlas.api.tokenization.tokenizer_fields import tokenizer_fields

from ..common.conversations import CHARS_PER_TOKEN, model_folder, text


def cpu_us(work: Callable[[], object]) -> float:
    """CPU time of one call, in microseconds."""
    begin = time.thread_time_ns()
    work()
    return (time.thread_time_ns() - begin) / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--chars", type=int, default=8192)
    arguments = parser.parse_args()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # as the server has it
    library = Tokenizer.from_file(str(model_folder() / "tokenizer.json"))
    native = byte_pair_encoder(tokenizer_fields(library))
    if native is None:
        raise SystemExit("the native part was not built here")
    figures: dict[str, list[float]] = {"new": [], "again": [], "library": []}
    n_left = 0
    for number in range(1, arguments.rounds + 1):
        part = text(int(arguments.chars / CHARS_PER_TOKEN), number)
        natively = partial(native.encode, [part])
        by_library = partial(encode_texts, library, [part], adds=False)
        times = [cpu_us(natively), cpu_us(natively), cpu_us(by_library)]
        (found,), (wanted,) = natively(), by_library()
        if found is None:
            n_left += 1
            continue
        if found != wanted:
            raise SystemExit(f"text {number}: the ids differ")
        for series, took in zip(figures.values(), times, strict=True):
            series.append(took / (len(wanted) // ID_BYTES))
    for name, series in figures.items():
        ratio = statistics.median(figures["library"]) / statistics.median(series)
        print(f"{name:8} {statistics.median(series):7.3f} us a token {ratio:7.1f}")
    print(f"{n_left} of {arguments.rounds} texts were left to the library")


if __name__ == "__main__":
    main()
