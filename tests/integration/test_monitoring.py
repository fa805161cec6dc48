"""deploy/monitoring: every query against a scrape of a running process, and the dashboard's queries by promtool."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import msgspec
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from support.engine_metrics import metrics_of
from support.ext_proc import response_body, response_headers
from support.fleets import make_endpoint
from support.local_process import local_process, until_held
from support.monitoring import ALERTS, DASHBOARD, FOLDER, alerts, check_query, flat, promtool, queries
from support.recording import player
from support.scraping import metrics

DOCS = FOLDER.parents[1] / "docs"

OF_PROMETHEUS = frozenset({"instance", "job"})
"""Labels that Prometheus adds to scraped series."""

NAME = re.compile(r"\b((?:kvatlas|process)_\w+)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)(?:=~|!=|!~|=)"([^"]*)"')
SHOWN = re.compile(r"\{\{ ?(?:\$labels\.)?([a-z]\w*) ?\}\}")


async def scraped() -> dict[str, dict[str, set[str]]]:
    """Return series -> label -> values after a few requests; labels are empty if the series has no sample."""
    usage = b'{"usage": {"prompt_tokens": 64, "prompt_tokens_details": {"cached_tokens": 48}}}'
    answer = [response_headers(("content-type", "application/json")), response_body(usage, end=True)]
    async with (
        player() as engine,
        metrics_of(metrics().decode()) as (url, _),
        local_process(
            make_endpoint("a", events=engine.events, metrics=url),
            make_endpoint("b", 2, events=""),
            replicas={
                "transport": "mesh",
                "mesh": {"listen": "tcp://127.0.0.1:0", "discover": {"list": ["tcp://127.0.0.1:9"]}},
            },
        ) as process,
    ):
        await until_held(process, engine)
        await process.until_state("load-known", "warn")
        await process.send_requests(3, responses=answer)
        async with process.session.get(f"{process.url}/metrics") as response:
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
    """Return name -> labels and meaning in docs/metrics.md."""
    rows = re.findall(
        r"^\| `(kvatlas_\w+)` \| \w+ \| (.*?) \| (.*) \|$", (DOCS / "metrics.md").read_text(), re.MULTILINE
    )
    return {name: (set(re.findall(r"`(\w+)`", labels)), meaning) for name, labels, meaning in rows}


async def test_every_query_names_metrics_labels_and_values_that_a_scrape_has() -> None:
    series, pages = await scraped(), documented()
    asked = list(queries())
    for query in asked:
        found = NAME.findall(query.expression)
        assert found, query
        every = set(OF_PROMETHEUS)
        for name, matchers in found:
            assert name in series, f"{query.where}: no series {name}"
            page_labels, meaning = pages.get(re.sub(r"_bucket$", "", name), (set[str](), ""))
            labels = set(series[name]) | page_labels | OF_PROMETHEUS
            every |= labels
            for label, pattern in MATCHER.findall(matchers):
                assert label in labels, f"{query.where}: {name} has no label {label}"
                if label not in OF_PROMETHEUS:
                    for value in pattern.split("|"):
                        known = value in series[name].get(label, ()) or re.search(rf"\b{value}\b", meaning)
                        assert known, f"{query.where}: {label} of {name} is never {value}"
        assert query.labels_by <= every, f"{query.where}: its series have {every}"
        shown = set(SHOWN.findall(query.text)) - {"value"}
        kept = query.labels_by or every
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
    page = (DOCS / "doctor.md").read_text()
    named = re.findall(r"`kvatlas doctor`: ([\w-]+)\.", ALERTS.read_text().replace("\n", " "))

    assert len(named) > 8
    assert [name for name in named if f"| `{name}` |" not in page] == []


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


def test_promtool_accepts_the_configuration_with_and_without_a_token(tmp_path: Path) -> None:
    shutil.copytree(FOLDER, tmp_path, dirs_exist_ok=True)
    (tmp_path / "metrics-token").write_text("secret")
    file = tmp_path / "prometheus.yaml"
    plain = promtool("check", "config", file)
    file.write_text(file.read_text().replace("  # authorization:", "  authorization:"))
    with_token = promtool("check", "config", file)

    assert "credentials_file" in yaml.safe_load(file.read_text())["scrape_configs"][0]["authorization"]
    for result in (plain, with_token):
        assert result.returncode == 0, result.stderr
        assert f"{len(alerts())} rules found" in result.stdout


REPLICAS = tuple(f'job="llm/qwen-epp",instance="{name}:9090"' for name in "ab")
"""Labels of two replicas that the chart's PodMonitor has scraped."""


@pytest.mark.parametrize(
    ("panel", "series", "wanted"),
    [
        pytest.param("Blocks held", {'kvatlas_residencies{endpoint="s",tier="gpu",%s}': 7}, {'{endpoint="s",tier="gpu"}': 7}, id="blocks"),
        pytest.param(
            "Publishers by trust",
            {'kvatlas_publisher_trust{endpoint="s",rank="0",state="live",%s}': 1, 'kvatlas_publisher_trust{endpoint="t",rank="0",state="live",%s}': 1},
            {'{state="live"}': 2},
            id="trust",
        ),
        pytest.param("Requests in flight", {'kvatlas_in_flight_requests{endpoint="s",%s}': 3}, {'{endpoint="s"}': 6}, id="in_flight"),
        pytest.param(
            "Memory of kvatlas",
            {"kvatlas_ready{%s}": 1, "process_resident_memory_bytes{%s}": 9, 'process_resident_memory_bytes{job="node",instance="n:1"}': 5},
            {f"process_resident_memory_bytes{{{labels}}}": 9 for labels in REPLICAS},
            id="memory",
        ),
    ],
)  # fmt: skip
def test_panel_shows_two_replicas_of_one_fleet(
    panel: str, series: dict[str, int], wanted: dict[str, int], tmp_path: Path
) -> None:
    query = next(each.expression for each in queries() if each.where == panel).replace("$instance", ".*")
    both = {name.replace("%s", labels): flat(value) for name, value in series.items() for labels in REPLICAS}
    check_query(query, both, wanted, tmp_path)
