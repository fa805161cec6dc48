"""Shares of requests that meet their objectives, and the page of them. The committed figures are not tested."""

from __future__ import annotations

import re
from pathlib import Path

from kvatlas.configs.loader import load_file
from kvatlas.sim.replay.comparison import Outcome
from kvatlas.sim.replay.figures import Estimate
from kvatlas.sim.slo.attainment import Attained, attained, page
from support.tree import ROOT, read

COMMITTED = Path("docs") / "slo.md"
FIGURES: tuple[str, ...] = ("sloMet", "ttftMean", "ttftP99", "hitRate")
NUMBER = re.compile(r"\d+(\.\d+)?")


def made(value: float) -> list[Attained]:
    figures = dict.fromkeys(FIGURES, Estimate(value, 0.0))
    return [
        Attained(load, [Outcome(name, 8, 0.0, figures) for name in ("precise", "latency", "slo")])
        for load in (0.83, 0.9, 1.0)
    ]


def test_replays_count_requests_that_met_their_objectives() -> None:
    (found,) = attained([1.0], seeds=1, policies=("precise",), seconds=20.0)

    (outcome,) = found.outcomes
    assert set(FIGURES) <= outcome.figures.keys()
    assert 0.0 < outcome.figures["sloMet"].mean <= 1.0


def test_committed_page_is_the_template_with_figures() -> None:
    text = page(made(0.5), sustained=0.92, seeds=2)

    assert "| 0.83 (90%) | 2:2:1:1 | 50.0% | 0.50 | 0.5 | 50.0% |" in text
    assert "| 40% | first token within 400 ms, each further token within 35 ms |" in text
    assert NUMBER.sub("N", read(ROOT / COMMITTED)) == NUMBER.sub("N", text)


def test_configuration_of_the_page_can_be_loaded(tmp_path: Path) -> None:
    text = page(made(0.5), sustained=0.92, seeds=2)
    file = tmp_path / "slo.yaml"
    file.write_text(text.split("```yaml\n")[1].split("```")[0])

    load_file(file)
