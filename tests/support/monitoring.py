"""The alerts and the dashboard of deploy/monitoring, and promtool."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from support.programs import find_program

FOLDER = Path(__file__).parents[2] / "deploy" / "monitoring"
ALERTS = FOLDER / "alerts.yaml"
DASHBOARD = FOLDER / "dashboard.json"

CLAUSE = re.compile(r"\b(?:by|on) \(([^)]*)\)")


@dataclass(frozen=True)
class Query:
    """One expression, and the text in which its labels are shown."""

    where: str
    expression: str
    text: str

    @property
    def labels_by(self) -> set[str]:
        """Return the labels that the clauses name."""
        return {label.strip() for found in CLAUSE.findall(self.expression) for label in found.split(",")}


def alerts() -> list[dict[str, Any]]:
    rules: list[dict[str, Any]] = yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]
    return rules


def queries() -> Iterator[Query]:
    for rule in alerts():
        yield Query(rule["alert"], rule["expr"], " ".join(rule["annotations"].values()))
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", ()):
            yield Query(panel["title"], target["expr"], target["legendFormat"])


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run promtool; skip the test if it is missing."""
    tool = find_program("promtool")
    if tool is None:
        pytest.skip("promtool is missing: `make test-programs` gets it from Debian's package prometheus")
    return subprocess.run([tool, *arguments], capture_output=True, text=True, check=False)


def flat(value: float) -> str:
    return f"{value:g}x60"


def rising(by: float) -> str:
    return f"0+{by:g}x60"


def check_query(
    query: str, series: dict[str, str], wanted: dict[str, int], folder: Path, *rule_files: str
) -> None:
    """Check with promtool what a query returns after an hour of one sample per minute."""
    expected = [{"labels": labels, "value": value} for labels, value in wanted.items()]
    case = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [{"expr": query, "eval_time": "1h", "exp_samples": expected}],
    }
    test = {"rule_files": rule_files, "evaluation_interval": "1m", "tests": [case]}
    (folder / "test.yaml").write_bytes(msgspec.yaml.encode(test))

    result = promtool("test", "rules", folder / "test.yaml")

    assert result.returncode == 0, result.stdout + result.stderr
