"""deploy/monitoring: every query against a scrape of a running process, and the rules by promtool."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from support.clinic import clinic, until_held
from support.engine_metrics import metrics_of
from support.ext_proc import response_body, response_headers
from support.fleets import make_endpoint
from support.recording import player
from support.scraping import metrics

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "monitoring"
ALERTS = FOLDER / "alerts.yaml"
DASHBOARD = FOLDER / "dashboard.json"
DOC = ROOT / "docs" / "metrics.md"

OF_PROMETHEUS = frozenset({"instance", "job"})
"""Labels that Prometheus adds to what it scrapes."""

NAME = re.compile(r"\b((?:kvatlas|process)_\w+)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)(?:=~|!=|!~|=)"([^"]*)"')
CLAUSE = re.compile(r"\b(?:by|on) \(([^)]*)\)")
SHOWN = re.compile(r"\{\{ ?(?:\$labels\.)?([a-z]\w*) ?\}\}")


@dataclass(frozen=True)
class Query:
    """One expression, and the text in which its labels are shown."""

    where: str
    expression: str
    text: str

    @property
    def labels_by(self) -> set[str]:
        """Labels that clauses name."""
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


async def scraped() -> dict[str, dict[str, set[str]]]:
    """Name of a series -> label -> values, of a process that has routed requests; no labels where it has no sample."""
    usage = b'{"usage": {"prompt_tokens": 64, "prompt_tokens_details": {"cached_tokens": 48}}}'
    answer = [response_headers(("content-type", "application/json")), response_body(usage, end=True)]
    async with (
        player() as engine,
        metrics_of(metrics().decode()) as (url, _),
        clinic(make_endpoint("a", events=engine.events, metrics=url), make_endpoint("b", 2, events="")) as at,
    ):
        await until_held(at, engine)
        await at.until_state("load-known", "warn")
        await at.requests(3, answers=answer)
        async with at.session.get(f"{at.url}/metrics") as response:
            text = await response.text()
    series: dict[str, dict[str, set[str]]] = {}
    for family in text_string_to_metric_families(text):
        endings = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}.get(family.type, [""])
        for ending in endings:
            series.setdefault(f"{family.name}{ending}", {"le": set()} if ending == "_bucket" else {})
        for sample in family.samples:
            for label, value in sample.labels.items():
                series.setdefault(sample.name, {}).setdefault(label, set()).add(value)
    return series


def documented() -> dict[str, tuple[set[str], str]]:
    """Name -> labels and meaning in docs/metrics.md."""
    rows = re.findall(r"^\| `(kvatlas_\w+)` \| \w+ \| (.*?) \| (.*) \|$", DOC.read_text(), re.MULTILINE)
    return {name: (set(re.findall(r"`(\w+)`", labels)), meaning) for name, labels, meaning in rows}


async def test_every_query_names_metrics_labels_and_values_that_a_scrape_has() -> None:
    series, pages = await scraped(), documented()
    asked = list(queries())
    for query in asked:
        found = NAME.findall(query.expression)
        assert found, query
        for name, matchers in found:
            assert name in series, f"{query.where}: no series {name}"
            page_labels, meaning = pages.get(re.sub(r"_bucket$", "", name), (set[str](), ""))
            labels = set(series[name]) | page_labels | OF_PROMETHEUS
            assert query.labels_by <= labels, f"{query.where}: {name} has {labels}"
            for label, pattern in MATCHER.findall(matchers):
                assert label in labels, f"{query.where}: {name} has no label {label}"
                if label not in OF_PROMETHEUS:
                    for value in pattern.split("|"):
                        known = value in series[name].get(label, ()) or re.search(rf"\b{value}\b", meaning)
                        assert known, f"{query.where}: {label} of {name} is never {value}"
            shown = set(SHOWN.findall(query.text)) - {"value"}
            kept = query.labels_by or labels
            assert shown <= kept | OF_PROMETHEUS, f"{query.where}: {shown - kept} is not kept by the query"
    assert len(asked) > 40


def test_dashboard_has_panels_that_do_not_overlap_and_one_data_source() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    cells = [
        (x, y)
        for panel in dashboard["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    sources = {
        target["datasource"]["uid"] for panel in dashboard["panels"] for target in panel.get("targets", ())
    }
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert sources == {"${datasource}"}
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_alerts_name_checks_of_the_doctor() -> None:
    page = (ROOT / "docs" / "doctor.md").read_text()
    named = re.findall(r"`kvatlas doctor`: ([\w-]+)\.", ALERTS.read_text().replace("\n", " "))

    assert len(named) > 8
    assert [name for name in named if f"| `{name}` |" not in page] == []


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs promtool, or skips where it is not installed."""
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip(
            "promtool is not here, so nobody parses the queries; it is in Debian's package prometheus"
        )
    return subprocess.run([tool, *arguments], capture_output=True, text=True, check=False)


def test_promtool_accepts_the_rules() -> None:
    result = promtool("check", "rules", ALERTS)

    assert result.returncode == 0, result.stderr
    assert f"{len(alerts())} rules found" in result.stdout


def test_promtool_accepts_the_queries_of_the_dashboard(tmp_path: Path) -> None:
    rules = [
        {"record": f"query:{number}", "expr": query.expression.replace("$__rate_interval", "1m")}
        for number, query in enumerate(queries())
    ]
    file = tmp_path / "queries.yaml"
    file.write_bytes(msgspec.yaml.encode({"groups": [{"name": "dashboard", "rules": rules}]}))

    result = promtool("check", "rules", file)

    assert result.returncode == 0, result.stderr


def flat(value: float) -> str:
    return f"{value:g}x60"


def rising(by: float) -> str:
    return f"0+{by:g}x60"


@pytest.mark.parametrize(
    ("alert", "series", "fires"),
    [
        pytest.param("KvatlasNotReady", {"kvatlas_ready": flat(0)}, True, id="not_ready"),
        pytest.param("KvatlasNotReady", {"kvatlas_ready": flat(1)}, False, id="ready"),
        pytest.param(
            "KvatlasScrapeFails",
            {
                'kvatlas_scrape_errors_total{endpoint="a",reason="timeout"}': rising(6),
                'kvatlas_scrapes_total{endpoint="a"}': flat(7),
            },
            True,
            id="every_read_fails",
        ),
        pytest.param(
            "KvatlasScrapeFails",
            {
                'kvatlas_scrape_errors_total{endpoint="a",reason="timeout"}': rising(6),
                'kvatlas_scrapes_total{endpoint="a"}': rising(60),
            },
            False,
            id="some_reads_fail",
        ),
        pytest.param(
            "KvatlasKeysNeverMatch",
            {
                "kvatlas_response_prompt_tokens_total": rising(6000),
                "kvatlas_response_cached_tokens_total": rising(3000),
                "kvatlas_usable_prefix_tokens_total": rising(6),
            },
            True,
            id="keys_that_never_match",
        ),
        pytest.param(
            "KvatlasKeysNeverMatch",
            {
                "kvatlas_response_prompt_tokens_total": rising(6000),
                "kvatlas_response_cached_tokens_total": rising(3000),
                "kvatlas_usable_prefix_tokens_total": rising(2900),
            },
            False,
            id="keys_that_match",
        ),
        pytest.param(
            "KvatlasCapacityDrift",
            {
                'kvatlas_observed_capacity_blocks{endpoint="a",tier="cpu"}': flat(20480),
                'kvatlas_capacity_blocks{endpoint="a",tier="cpu"}': flat(41000),
            },
            True,
            id="half_the_capacity",
        ),
    ],
)
def test_alert_fires_when_it_should_and_only_then(
    alert: str, series: dict[str, str], fires: bool, tmp_path: Path
) -> None:
    """By promtool, an hour into series with a sample a minute: whether the alert's expression has held for long enough."""
    rule = next(rule for rule in alerts() if rule["alert"] == alert)
    (tmp_path / "rules.yaml").write_bytes(
        msgspec.yaml.encode({"groups": [{"name": "kvatlas", "rules": [rule]}]})
    )
    firing = f'{{alertname="{alert}",alertstate="firing"}}'
    test = {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "promql_expr_test": [
                    {
                        "expr": f"count by (alertname, alertstate) (ALERTS{firing})",
                        "eval_time": "1h",
                        "exp_samples": [{"labels": firing, "value": 1}] if fires else [],
                    }
                ],
            }
        ],
    }
    (tmp_path / "test.yaml").write_bytes(msgspec.yaml.encode(test))

    result = promtool("test", "rules", tmp_path / "test.yaml")

    assert result.returncode == 0, result.stdout + result.stderr
