"""Flags that only the reference endpoint picker has: what each sets, and texts that it refuses."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from kvatlas.app.cli.flag_table import FLAGS
from kvatlas.app.cli.reference_flags import ReferenceFlags, our_command_line, reference_help
from kvatlas.configs.schema import PluginConfig
from kvatlas.configs.scraping import EngineConfig, MetricsScrapeConfig
from kvatlas.configs.units import Duration
from support.fleets import make_config
from support.tree import ROOT

CONFIG = make_config(endpoints={"static": []})
VLLM = EngineConfig(
    waiting="vllm:num_requests_waiting",
    running="vllm:num_requests_running",
    kv_utilization="vllm:kv_cache_usage_perc",
    lora_info="vllm:lora_requests_info",
    cache_info="vllm:cache_config_info",
)


def value_at(path: str, *flags: str) -> object:
    """Return the value at the attributes of `path` with the flags of a command line."""
    found: object = our_command_line(flags).reference.apply(CONFIG)
    for name in path.split("."):
        found = getattr(found, name)
    return found


@pytest.mark.parametrize(
    ("flag", "path", "expected"),
    [
        pytest.param("--drain-timeout=1m30s", "server.drain_timeout", 90.0, id="duration"),
        pytest.param("--drain-timeout=0", "server.drain_timeout", 0.001, id="at_once"),
        pytest.param("--refresh-metrics-interval=0.2s", "metrics_scrape.interval", 0.2, id="interval"),
        pytest.param("--refresh-metrics-interval=1ms", "metrics_scrape.interval", 0.05, id="lowest_interval"),
        pytest.param("--metrics-staleness-threshold=500ms", "metrics_scrape.stale_after", 0.5, id="stale"),
        pytest.param("--emit-endpoint-scores", "ext_proc.emit_scores", True, id="switch"),
        pytest.param("--emit-endpoint-scores=F", "ext_proc.emit_scores", False, id="switch_off"),
        pytest.param("--disable-endpoint-subset-filter", "ext_proc.use_subset", False, id="turned_round"),
        pytest.param("--grpc-max-recv-msg-size=10MiB", "ext_proc.max_message_bytes", 10 * 2**20, id="binary"),
        pytest.param("--grpc-max-recv-msg-size=100MB", "ext_proc.max_body_bytes", 10**8, id="longer_bodies"),
        pytest.param("--grpc-max-recv-msg-size=1MB", "ext_proc.max_body_bytes", 2**25, id="bodies_as_before"),
        pytest.param("--grpc-max-recv-msg-size=1GiB", "ext_proc.max_held_bytes", 2**30, id="more_is_held"),
        pytest.param("--grpc-max-send-msg-size=1.5Mi", "ext_proc.max_sent_message_bytes", 1_572_864, id="Mi"),
        pytest.param("--grpc-max-send-msg-size=1", "ext_proc.max_sent_message_bytes", 65_536, id="least"),
        pytest.param("--tls-min-version=VersionTLS13", "server.tls.min_version", "TLSv1.3", id="tls_1_3"),
        pytest.param("--tls-min-version=VersionTLS10", "server.tls.min_version", "TLSv1.2", id="tls_1_0"),
        pytest.param(
            "--tls-cipher-suites=TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, TLS_AES_128_GCM_SHA256",
            "server.tls.cipher_suites", ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",), id="suites",
        ),
        pytest.param("--enable-cert-reload=false", "server.tls.reload", False, id="no_reload"),
        pytest.param("--metrics-cert-dir=/c", "server.metrics_tls.cert_file", "/c/tls.crt", id="metrics_tls"),
        pytest.param(
            '--total-queued-requests-metric="a{b=c}"', "metrics_scrape.engines",
            {"flags": replace(VLLM, waiting="a{b=c}")},
            id="series_in_quotes",
        ),
        pytest.param("--lora-info-metric=x", "metrics_scrape.engine", "flags", id="engine_of_the_series"),
    ],
)  # fmt: skip
def test_flag_sets_its_key(flag: str, path: str, expected: object) -> None:
    assert value_at(path, flag) == expected


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        pytest.param("--drain-timeout=5", "--drain-timeout: found '5', expected a duration", id="no_unit"),
        pytest.param("--drain-timeout=-5s", "--drain-timeout: found '-5s'", id="negative"),
        pytest.param("--metrics-staleness-threshold=0s", "expected a duration above zero", id="zero"),
        pytest.param("--emit-endpoint-scores=maybe", "expected true or false", id="no_switch"),
        pytest.param("--grpc-max-recv-msg-size=10XB", "found '10XB', expected a size", id="no_size"),
        pytest.param("--grpc-max-recv-msg-size=0", "above zero", id="no_bytes"),
        pytest.param("--tls-min-version=1.3", "expected VersionTLS10 or", id="version"),
        pytest.param("--tls-cipher-suites=A", "found 'A', expected some of TLS_ECDHE", id="suite"),
        pytest.param("--cache-info-metric=a b", "expected a series such as", id="series"),
    ],
)
def test_unusable_value_is_refused_by_the_name_of_its_flag(flag: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        our_command_line([flag]).reference.apply(CONFIG)


def test_last_of_several_counts_and_the_rest_of_the_configuration_stays() -> None:
    flags = our_command_line(["--drain-timeout", "1s", "--drain-timeout", "30s"]).reference
    assert flags.apply(CONFIG) == CONFIG


def test_interval_of_a_plugin_goes_before_the_flags() -> None:
    plugin = PluginConfig(type="metrics-data-source", parameters={"interval": "1s"})
    scrape = MetricsScrapeConfig(interval=Duration(1.0))
    config = replace(CONFIG, plugins=(plugin,), metrics_scrape=scrape)
    assert our_command_line(["--refresh-metrics-interval=100ms"]).reference.apply(config) == config


@pytest.mark.parametrize("given", [["-v4"], ["-v", "4"], ["-v=4"], ["--v", "4"], ["--v=4"]], ids=" ".join)
def test_verbosity_is_taken_in_each_of_gos_forms(given: list[str]) -> None:
    assert our_command_line(given).reference.given == {"v": "4"}


def test_flag_without_effect_is_named_with_its_reason() -> None:
    flags = our_command_line(["--enable-pprof=false", "--drain-timeout=1s"]).reference
    assert flags.notes() == ["--enable-pprof has no effect here: profiles are those of Go programs"]
    assert float(flags.apply(CONFIG).server.drain_timeout) == 1.0


def test_every_flag_acts_or_has_a_reason_and_is_in_the_docs() -> None:
    by_the_command = {
        "config-text", "watch-config-file", "v", "zap-log-level", "zap-encoder", "zap-devel", "zap-time-encoding",
    }  # fmt: skip
    acting = {name for name, flag in FLAGS.items() if not flag.reason}
    assert {name for name, flag in FLAGS.items() if flag.apply is not None} == acting - by_the_command
    rows = [
        f"| `--{flag.name}{flag.value and f' {flag.value}'}` | {flag.text or f'no effect: {flag.reason}'} |"
        for flag in FLAGS.values()
    ]
    page = (ROOT / "docs" / "commands.md").read_text()
    assert [row for row in rows if row not in page] == []


def test_help_names_every_flag() -> None:
    assert [name for name in FLAGS if f"--{name}" not in reference_help()] == []


def test_no_flags_change_nothing() -> None:
    assert ReferenceFlags().apply(CONFIG) is CONFIG
