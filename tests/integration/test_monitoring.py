"""deploy/monitoring: every query against a scrape of a running process, and the rules checked by promtool."""

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

from support.engine_metrics import metrics_of
from support.ext_proc import response_body, response_headers
from support.fleets import make_endpoint
from support.local_process import local_process, until_held
from support.programs import find_program
from support.recording import player
from support.scraping import metrics

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "monitoring"
ALERTS = FOLDER / "alerts.yaml"
DASHBOARD = FOLDER / "dashboard.json"
DOC = ROOT / "docs" / "metrics.md"

OF_PROMETHEUS = frozenset({"instance", "job"})
"""Labels that Prometheus adds to scraped series."""

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


async def scraped() -> dict[str, dict[str, set[str]]]:
    """Return series -> label -> values after a few requests; labels are empty if the series has no sample."""
    usage = b'{"usage": {"prompt_tokens": 64, "prompt_tokens_details": {"cached_tokens": 48}}}'
    answer = [response_headers(("content-type", "application/json")), response_body(usage, end=True)]
    async with (
        player() as engine,
        metrics_of(metrics().decode()) as (url, _),
        local_process(
            make_endpoint("a", events=engine.events, metrics=url), make_endpoint("b", 2, events="")
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
    rows = re.findall(r"^\| `(kvatlas_\w+)` \| \w+ \| (.*?) \| (.*) \|$", DOC.read_text(), re.MULTILINE)
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
    page = (ROOT / "docs" / "doctor.md").read_text()
    named = re.findall(r"`kvatlas doctor`: ([\w-]+)\.", ALERTS.read_text().replace("\n", " "))

    assert len(named) > 8
    assert [name for name in named if f"| `{name}` |" not in page] == []


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run promtool; skip the test if it is missing."""
    tool = find_program("promtool")
    if tool is None:
        pytest.skip("promtool is missing: `make test-programs` gets it from Debian's package prometheus")
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


def flat(value: float) -> str:
    return f"{value:g}x60"


def rising(by: float) -> str:
    return f"0+{by:g}x60"


def histogram(name: str, *, at_most: str) -> dict[str, str]:
    """Return sixty observations per minute, all in the bucket up to `at_most` seconds."""
    buckets = ("0.001", "1", "10", "+Inf")
    rises = [0 if float(le) < float(at_most) else 60 for le in buckets]
    return {f'{name}_bucket{{le="{le}"}}': rising(by) for le, by in zip(buckets, rises, strict=True)}


def audited(good: float, evicted: float) -> dict[str, str]:
    verdicts = {"good": good, "evicted": evicted, "event_lag": 60}
    name = 'kvatlas_audited_requests_total{endpoint="a",verdict="%s"}'
    return {name % verdict: rising(by) for verdict, by in verdicts.items()}


def shares(counter: str, label: str, **by: float) -> dict[str, str]:
    return {f'{counter}{{{label}="{value}"}}': rising(rate) for value, rate in by.items()}


TRUST = 'kvatlas_publisher_trust{endpoint="a",rank="0",state="%s"}'
APPLIED = 'kvatlas_stream_applied_total{endpoint="a",rank="0"}'
LOST = 'kvatlas_stream_lost_total{endpoint="a",rank="0"}'
REJECTED = 'kvatlas_events_rejected_total{endpoint="a",reason="bad_hash"}'
UNROUTED = 'kvatlas_messages_unrouted_total{reason="not_a_topic"}'
SCRAPES, SCRAPE_ERRORS = (
    'kvatlas_scrapes_total{endpoint="a"}',
    'kvatlas_scrape_errors_total{endpoint="a",reason="timeout"}',
)
NO_PREFIX, PICKS = (
    'kvatlas_prompts_without_prefix_total{reason="no_tokenizer"}',
    'kvatlas_picks_total{endpoint="a"}',
)
PROMPT, CACHED = "kvatlas_response_prompt_tokens_total", "kvatlas_response_cached_tokens_total"
FORESEEN = "kvatlas_usable_prefix_tokens_total"
REFUSALS, FAULTS = (
    'kvatlas_refusals_total{code="503"}',
    'kvatlas_plugin_faults_total{plugin="p",reason="raised"}',
)
HELD, BOUND = (
    f'kvatlas_{name}_blocks{{endpoint="a",tier="cpu"}}' for name in ("observed_capacity", "capacity")
)
TASKS = 'kvatlas_tasks_failed_total{task="events"}'
HELD_LOOP = "kvatlas_loop_held_seconds"
SNAPSHOTS, CERTIFICATE = "kvatlas_snapshot_failures_total", "kvatlas_tls_certificate_end_seconds"
DAY_S = 86400

FIRING_AND_SILENT: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "KvatlasNotReady": ({"kvatlas_ready": flat(0)}, {"kvatlas_ready": flat(1)}),
    "KvatlasEndpointUnheard": (
        {TRUST % "stale": flat(1), TRUST % "live": flat(0), APPLIED: flat(0)},
        {TRUST % "stale": flat(0), TRUST % "dark": flat(0), TRUST % "live": flat(1), APPLIED: flat(0)},
    ),
    "KvatlasEventsLost": ({LOST: rising(1)}, {LOST: flat(7)}),
    "KvatlasEventsUnreadable": ({REJECTED: rising(1)}, {REJECTED: flat(7)}),
    "KvatlasMessagesUnrouted": ({UNROUTED: rising(1)}, {UNROUTED: flat(7)}),
    "KvatlasEventsLate": (
        histogram("kvatlas_event_lag_seconds", at_most="10"), histogram("kvatlas_event_lag_seconds", at_most="1")
    ),
    "KvatlasScrapeFails": ({SCRAPE_ERRORS: rising(6), SCRAPES: flat(7)}, {SCRAPE_ERRORS: rising(6), SCRAPES: rising(60)}),
    "KvatlasPromptsWithoutPrefix": ({NO_PREFIX: rising(30), PICKS: rising(100)}, {NO_PREFIX: rising(10), PICKS: rising(100)}),
    "KvatlasKeysNeverMatch": (
        {PROMPT: rising(6000), CACHED: rising(3000), FORESEEN: rising(6)},
        {PROMPT: rising(6000), CACHED: rising(3000), FORESEEN: rising(2900)},
    ),
    "KvatlasExpectationsFail": (audited(good=30, evicted=30), audited(good=60, evicted=6)),
    "KvatlasPicksIgnored": (
        shares("kvatlas_responses_served_total", "by", picked=90, other=10),
        shares("kvatlas_responses_served_total", "by", picked=98, other=2),
    ),
    "KvatlasDecisionsSlow": (
        histogram("kvatlas_decision_seconds", at_most="1"), histogram("kvatlas_decision_seconds", at_most="0.001")
    ),
    "KvatlasLoopHeld": (
        {f"{HELD_LOOP}_count": rising(6000), f'{HELD_LOOP}_bucket{{le="0.05"}}': rising(5999)},
        {f"{HELD_LOOP}_count": rising(6000), f'{HELD_LOOP}_bucket{{le="0.05"}}': rising(6000)},
    ),
    "KvatlasTasksFail": ({TASKS: rising(1)}, {TASKS: flat(7)}),
    "KvatlasRefusals": ({REFUSALS: rising(10), PICKS: rising(90)}, {REFUSALS: rising(1), PICKS: rising(90)}),
    "KvatlasPluginFaults": ({FAULTS: rising(1)}, {FAULTS: flat(7)}),
    "KvatlasConfigurationRefused": ({"kvatlas_config_refused": flat(1)}, {"kvatlas_config_refused": flat(0)}),
    "KvatlasCapacityDrift": ({HELD: flat(20480), BOUND: flat(41000)}, {HELD: flat(20480), BOUND: flat(21504)}),
    "KvatlasSnapshotFails": ({SNAPSHOTS: rising(1)}, {SNAPSHOTS: flat(7)}),
    "KvatlasCertificateEnds": ({CERTIFICATE: flat(13 * DAY_S)}, {CERTIFICATE: flat(15 * DAY_S)}),
}  # fmt: skip
"""Alert -> series with which it fires and with which it does not; the clock of promtool begins at 0."""


def test_every_alert_has_series_that_make_it_fire_and_that_do_not() -> None:
    assert list(FIRING_AND_SILENT) == [rule["alert"] for rule in alerts()]


@pytest.mark.parametrize("fires", [pytest.param(True, id="fires"), pytest.param(False, id="silent")])
@pytest.mark.parametrize("alert", FIRING_AND_SILENT)
def test_alert_fires_when_it_should_and_only_then(alert: str, *, fires: bool, tmp_path: Path) -> None:
    firing_series, silent_series = FIRING_AND_SILENT[alert]
    check_alert(alert, firing_series if fires else silent_series, fires=fires, folder=tmp_path)


@pytest.mark.parametrize(
    ("alert", "series"),
    [
        pytest.param("KvatlasEventsUnreadable", REJECTED, id="events"),
        pytest.param("KvatlasMessagesUnrouted", UNROUTED, id="messages"),
        pytest.param("KvatlasTasksFail", TASKS, id="tasks"),
        pytest.param("KvatlasPluginFaults", FAULTS, id="plugins"),
    ],
)
@pytest.mark.parametrize(
    ("values", "fires"),
    [
        pytest.param("_x55 1x5", True, id="new"),
        pytest.param("_x40 1x20", False, id="no_longer_new"),
    ],
)
def test_first_event_of_a_series_that_did_not_exist_fires(
    alert: str, series: str, values: str, *, fires: bool, tmp_path: Path
) -> None:
    check_alert(alert, {series: values}, fires=fires, folder=tmp_path)


@pytest.mark.parametrize(
    ("leads", "fires"), [pytest.param(1, False, id="another_one"), pytest.param(0, True, id="none")]
)
def test_replica_that_waits_to_lead_is_not_ready_without_alert_while_another_one_leads(
    leads: int, *, fires: bool, tmp_path: Path
) -> None:
    waiting, leader = (f'{{job="kvatlas",instance="{name}:9090"}}' for name in ("a", "b"))
    series = {
        f"kvatlas_ready{waiting}": flat(0),
        f"kvatlas_leads{waiting}": flat(0),
        f"kvatlas_ready{leader}": flat(1),
        f"kvatlas_leads{leader}": flat(leads),
    }
    check_alert("KvatlasNotReady", series, fires=fires, folder=tmp_path)


def test_endpoint_that_is_to_publish_no_events_raises_no_alert(tmp_path: Path) -> None:
    check_alert("KvatlasEndpointUnheard", {TRUST % "dark": flat(1)}, fires=False, folder=tmp_path)


def check_alert(alert: str, series: dict[str, str], *, fires: bool, folder: Path) -> None:
    """Check with promtool whether an alert fires after an hour of one sample per minute."""
    rule = next(rule for rule in alerts() if rule["alert"] == alert)
    (folder / "rules.yaml").write_bytes(
        msgspec.yaml.encode({"groups": [{"name": "kvatlas", "rules": [rule]}]})
    )
    firing = f'{{alertname="{alert}",alertstate="firing"}}'
    query = f"count by (alertname, alertstate) (ALERTS{firing})"
    check_query(query, series, {firing: 1} if fires else {}, folder, "rules.yaml")


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
