"""The native encoder beside the library, on the same texts in turns.

The texts come from Python's standard library, the vocabulary has 32,000 entries. Figures are CPU time of one thread. *First sight*
is a text that no encoder of the process has seen, *again* the same text once more. Ends with status 1 if the ids differ.
"""

from __future__ import annotations

import argparse
import os
import statistics
from functools import partial

from tokenizers import Tokenizer

from kvatlas.tokenization.encoding.byte_pairs import byte_pair_encoder
from kvatlas.tokenization.encoding.segment_encoder import ID_BYTES, encode_texts
from kvatlas.tokenization.encoding.tokenizer_fields import tokenizer_fields

from ..common.benchmark import Benchmark
from ..common.conversations import CHARS_PER_TOKEN, model_folder, text
from ..common.tables import Table
from ..common.timing import microseconds

_LIBRARY = "library"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--rounds", type=int, default=200, help="texts (200)")
    parser.add_argument("--chars", type=int, default=8192, help="per text (8192)")


def run(options: argparse.Namespace) -> list[Table]:
    """Encode every text three times."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # as the server has it
    library = Tokenizer.from_file(str(model_folder() / "tokenizer.json"))
    native = byte_pair_encoder(tokenizer_fields(library))
    if native is None:
        raise SystemExit("the native part was not built here")
    figures: dict[str, list[float]] = {"native, first sight": [], "native, again": [], _LIBRARY: []}
    n_left = 0
    for number in range(1, options.rounds + 1):
        part = text(int(options.chars / CHARS_PER_TOKEN), number)
        natively = partial(native.encode, [part])
        by_library = partial(encode_texts, library, [part], adds=False)
        times = [microseconds(natively), microseconds(natively), microseconds(by_library)]
        (found,), (wanted,) = natively(), by_library()
        if found is None:
            n_left += 1
            continue
        if found != wanted:
            raise SystemExit(f"text {number}: the ids differ")
        for series, took in zip(figures.values(), times, strict=True):
            series.append(took / (len(wanted) // ID_BYTES))
    print(f"{n_left} of {options.rounds} texts were left to the library")
    return [_table(figures)]


def _table(figures: dict[str, list[float]]) -> Table:
    medians = {name: statistics.median(series) for name, series in figures.items()}
    rows = tuple((name, us, medians[_LIBRARY] / us) for name, us in medians.items())
    headings = ("encoder", "us per token", "times as fast as the library")
    return Table(name="encoders", title="Encoding of new text", headings=headings, rows=rows)


BENCHMARK = Benchmark(
    name="encoding", about=__doc__, add_options=add_options, run=run, distributions=("kvatlas", "tokenizers")
)
