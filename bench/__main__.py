"""Everything that kvatlas claims to be fast at, beside Dynamo, in one run.

Use: python -m bench [--quick] [--json FILE]          (or: make bench)

Ends with status 1 when columns do not agree on a result. docs/benchmarks.md says what is measured and how.
"""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from pathlib import Path

import uvloop
from rich.console import Console
from rich.progress import Progress

from . import dynamo
from .columns import Column
from .machine import machine, versions
from .processes import raise_file_limit
from .report import Report, as_json, document, table
from .run import run
from .sizes import SIZES

_DOCUMENT = Path(__file__).parents[1] / "docs" / "benchmarks.md"
_OURS = [Column.REFERENCE, Column.NATIVE]
_WITHOUT_DYNAMO = "Without Dynamo's columns: `.venv/bin/python -m pip install --no-deps ai-dynamo-runtime` (217 MB) adds them."
_WIDTH = 160


def main() -> None:
    arguments = _parse()
    console = Console()
    console = Console(width=max(console.width, _WIDTH)) if not console.is_terminal else console
    raise_file_limit()
    is_beside_dynamo = dynamo.version() is not None and not arguments.without_dynamo
    columns = list(Column) if is_beside_dynamo else _OURS
    where = machine()
    with Progress(console=console, transient=True) as progress:
        sections = uvloop.run(run(SIZES[arguments.size], columns, progress))
    report = Report(
        date=datetime.now(UTC).date().isoformat(),
        size=arguments.size,
        machine=where,
        versions=versions(),
        notes=[] if is_beside_dynamo else [_WITHOUT_DYNAMO],
        columns=columns,
        sections=sections,
    )
    console.print(table(report))
    console.print(
        f"{where}. {', '.join(f'{n} {v}' for n, v in report.versions.items())}.", *report.notes, sep="\n"
    )
    if arguments.json is not None:
        arguments.json.write_bytes(as_json(report))
    if arguments.write is not None or arguments.size == "full":
        (arguments.write or _DOCUMENT).write_text(document(report))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=SIZES, default="full", help="how much is measured (full)")
    parser.add_argument(
        "--quick", dest="size", action="store_const", const="quick", help="--size quick: under a minute"
    )
    parser.add_argument(
        "--without-dynamo", action="store_true", help="our columns alone, though it is installed"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    parser.add_argument(
        "--write",
        type=Path,
        metavar="FILE",
        help=f"the document; only a full run goes to {_DOCUMENT.name} by itself",
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
