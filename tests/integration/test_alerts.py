"""deploy/monitoring/alerts.yaml: each alert fires when it should and only then, by promtool."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from support.monitoring import alerts, check_query, flat, rising


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


def target(name: str, instance: str = "a") -> str:
    return f'{name}{{job="kvatlas",instance="{instance}:9090"}}'


def replicas(**n_live: int) -> dict[str, str]:
    """Return series of ready replicas that hear so many others, and of one that starts."""
    series = {target("kvatlas_ready", "starting"): flat(0)}
    for instance, n in n_live.items():
        heard = target("kvatlas_replica_siblings", instance).replace("}", ',state="live"}')
        series |= {target("kvatlas_ready", instance): flat(1), heard: flat(n)}
    return series


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
FORESEEN, KNOWN = "kvatlas_usable_prefix_tokens_total", "kvatlas_prompt_tokens_total"
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
    "KvatlasUnreachable": (
        {target("up"): "1x30 0x30", target("kvatlas_ready"): "1x30 stale"},
        {target("up"): flat(1), target("kvatlas_ready"): flat(1), target("up", "other"): flat(0)},
    ),
    "KvatlasReplicasApart": (replicas(a=1, b=2, c=2), replicas(a=2, b=2, c=2)),
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
        {PROMPT: rising(6000), CACHED: rising(3000), FORESEEN: rising(6), KNOWN: rising(6000)},
        {PROMPT: rising(6000), CACHED: rising(3000), FORESEEN: rising(2900), KNOWN: rising(6000)},
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
        pytest.param("1x48 stale _x2 1x10", False, id="not_scraped_for_a_while"),
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


@pytest.mark.parametrize(
    ("alert", "series"),
    [
        pytest.param("KvatlasEndpointUnheard", {TRUST % "dark": flat(1)}, id="no_events"),
        pytest.param(
            "KvatlasKeysNeverMatch",
            {PROMPT: rising(6000), CACHED: rising(3000), FORESEEN: flat(0), KNOWN: flat(0)},
            id="no_tokenizer",
        ),
    ],
)
def test_fleet_without_events_or_token_ids_raises_no_alert(
    alert: str, series: dict[str, str], tmp_path: Path
) -> None:
    check_alert(alert, series, fires=False, folder=tmp_path)


def check_alert(alert: str, series: dict[str, str], *, fires: bool, folder: Path) -> None:
    """Check with promtool whether an alert fires after an hour of one sample per minute."""
    rule = next(rule for rule in alerts() if rule["alert"] == alert)
    (folder / "rules.yaml").write_bytes(
        msgspec.yaml.encode({"groups": [{"name": "kvatlas", "rules": [rule]}]})
    )
    firing = f'{{alertname="{alert}",alertstate="firing"}}'
    query = f"count by (alertname, alertstate) (ALERTS{firing})"
    check_query(query, series, {firing: 1} if fires else {}, folder, "rules.yaml")
