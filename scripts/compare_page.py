"""Run the comparison of docs/compare.md, and write its table and picture. For a quiet machine; takes about two hours.

    python scripts/compare_page.py [--rates 2.0,2.6,3.4] [--seconds 60] [--repeats 3] [--picker COMMAND]

`--picker` is that of `kvatlas demo --compare`: the reference picker, which is no part of this repository.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "compare.md"
PICTURE = ROOT / "docs" / "images" / "compare.svg"
FILES = ("random", "tiered", "optimized-baseline", "affinity")
REGION = re.compile(r"(<!-- compare begin -->\n).*?(<!-- compare end -->)", re.DOTALL)


def command(options: argparse.Namespace) -> list[str]:
    """Return the command line of the comparison."""
    files = [str(ROOT / "docs" / "examples" / "compare" / f"{name}.yaml") for name in FILES]
    picker = ["--picker", options.picker] if options.picker else []
    return [
        *(str(Path(sys.executable).with_name("kvatlas")), "demo", "--compare"),
        *("round-robin", "weights", "latency", *files),
        *("--rate", options.rates, "--seconds", options.seconds, "--repeats", options.repeats),
        *("--plot", str(PICTURE), "--json", *picker),
    ]


def text_of(found: dict[str, Any]) -> str:
    """Return the region of the page: conditions, and a row per policy with a column per rate."""
    settings, rows = found["settings"], found["rows"]
    rates, policies = settings["rate"], list(dict.fromkeys(row["policy"] for row in rows))
    runs = {(row["policy"], row["rate"]): row["runs"] for row in rows}
    repeats = settings["repeats"]
    lines = [
        f"{settings['servers']} servers, chats begin for {settings['seconds']:g} s, {repeats} run{'s' * (repeats > 1)} of each.",
        f"Cells: mean time to first token in s ({'its range; ' * (repeats > 1)}p99), share of tokens cached.",
        "",
        f"| policy | {' | '.join(f'{rate:g} chats/s' for rate in rates)} |",
        f"|---{'|---' * len(rates)}|",
        *(f"| {policy} | {' | '.join(_cell(runs[policy, rate]) for rate in rates)} |" for policy in policies),
        "",
        *(f"- {remark}" for remark in found["remarks"]),
        *([""] if found["remarks"] else []),
        "![Mean and p99 over the rate, by policy](images/compare.svg)",
    ]
    return "\n".join(lines)


def _cell(runs: list[dict[str, float]]) -> str:
    means = [run["ttftMean"] for run in runs]
    p99, cached = (sum(run[name] for run in runs) / len(runs) for name in ("ttftP99", "cached"))
    failed = sum(run["failed"] for run in runs)
    ending = f", {failed:g} failed" if failed else ""
    reach = f"{min(means):.2f}-{max(means):.2f}; " if len(means) > 1 else ""
    return f"{sum(means) / len(means):.2f} ({reach}{p99:.1f}), {cached:.0%}{ending}"


def main() -> None:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rates", default="2.0,2.6,3.4")
    parser.add_argument("--seconds", default="60")
    parser.add_argument("--repeats", default="3")
    parser.add_argument("--picker", default="")
    ran = subprocess.run(command(parser.parse_args()), stdout=subprocess.PIPE, check=False)
    if not ran.stdout:
        raise SystemExit(ran.returncode)
    region = f"\\g<1>\n{text_of(json.loads(ran.stdout))}\n\n\\2"
    PAGE.write_text(REGION.sub(region, PAGE.read_text()))
    raise SystemExit(ran.returncode)


if __name__ == "__main__":
    main()
