"""The table that `make replica-figures` writes."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from support.replica_figures import BEGIN, END, Figures, Phase, record, written


def figures(hurt: str, hit_rate: float) -> Figures:
    phase = Phase(requests=30_000, failed=0, seconds=60.0, hit_rate=hit_rate, undecided=2)
    return Figures(transport="mesh", hurt=hurt, phases=[phase] * 3, counted=12, left=0, about="here")


def test_figures_of_a_run_become_a_table_of_which_each_case_has_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "build" / "figures"
    monkeypatch.setenv("KVATLAS_REPLICA_FIGURES", str(file))
    for each in (figures("kill -9", 0.5), figures("freeze", 0.9), figures("kill -9", 0.9)):
        record(each)
    found = [msgspec.json.decode(line, type=Figures) for line in file.read_bytes().splitlines()]
    page = written(f"before\n{BEGIN}\n\nold\n\n{END}\nafter\n", found)

    assert written(page, found) == page
    lines = page.splitlines()
    assert (lines[0], lines[-1]) == ("before", "after")
    assert [line for line in lines if line.startswith("| mesh")] == [
        f"| mesh | {hurt} | 30,000, 30,000, 30,000 | 500 | 0 | 90.00 % | 90.00 % | 90.00 % | 2, 2, 2 | 12 of 12 | 0 |"
        for hurt in ("kill -9", "freeze")
    ]
