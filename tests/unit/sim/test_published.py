"""The published benchmark on simulated servers, and its page. Its figures are not tested."""

from __future__ import annotations

import re
from pathlib import Path

from kvatlas.sim.published.cases import PUBLISHED, VARIATIONS, WARM, Result, run_setup
from kvatlas.sim.published.page import page, plot
from kvatlas.sim.published.published import FIGURES, WORKLOADS
from kvatlas.sim.replay.figures import Estimate
from support.tree import imports, read, tracked_files


def made(change: float) -> Result:
    names = (*FIGURES, "gpuHitRate", "cpuHitRate")
    return Result(
        {name: Estimate(10.0, 1.0) for name in names},
        {name: Estimate(8.0, 1.0) for name in names},
        {name: Estimate(change, 0.01) for name in names},
    )


def test_setup_counts_every_prompt_of_the_published_workload_once() -> None:
    progress: list[None] = []

    results = [
        run_setup(setup, "low cache", seeds=1, granularity=64, jobs=1, progress=lambda: progress.append(None))
        for setup in (PUBLISHED, WARM)
    ]

    assert len(progress) == 4
    for result in results:
        assert result.baseline["requests"].mean == result.offloading["requests"].mean == 450
        assert result.baseline["refused"].mean == 0
        change = result.offloading["ttftMean"].mean / result.baseline["ttftMean"].mean - 1
        assert result.changes["ttftMean"].mean == change
    cold, warm = (result.baseline["gpuHitRate"].mean for result in results)
    assert warm > cold


def test_page_has_published_figures_beside_simulated_ones(tmp_path: Path) -> None:
    results = {(setup.name, workload): made(-0.2) for setup in VARIATIONS for workload in WORKLOADS}

    text = page(results, seeds=3, granularity=2)
    plot(results, tmp_path / "plot.svg")

    assert "| mean TTFT, s | 9.00 | 6.70 | -25.6 % | 10.00 ±1.00 | 8.00 ±1.00 | -20.0 % ±1.0 |" in text
    assert "3 seeds a case, 2 blocks simulated as one" in text
    assert all(text.count(f"| {setup.name} |") == 4 for setup in VARIATIONS)
    assert "$" not in text
    assert "<!-- high cache -->" in (tmp_path / "plot.svg").read_text()


def test_committed_page_is_of_this_template_and_these_published_figures() -> None:
    committed = read(Path("docs/benchmark-tiered.md"))
    results = {(setup.name, workload): made(0.0) for setup in VARIATIONS for workload in WORKLOADS}

    def words(text: str) -> str:
        return re.sub(r"^Written by.*$|^\|.*$", "", text, flags=re.MULTILINE)

    assert words(committed) == words(page(results, seeds=1, granularity=1))


def test_nothing_that_is_installed_imports_the_published_benchmark() -> None:
    files = [path for path in tracked_files() if path.suffix == ".py" and path.parts[0] != "tests"]
    others = [path for path in files if path.parts[:2] != ("sim", "published")]
    names = {name for path in others for _, name in imports(read(path), path)}
    assert not [name for name in names if name.startswith("kvatlas.sim.published")]
