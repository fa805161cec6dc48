"""Flags that only the reference endpoint picker has, each with what it sets here.

Source: `epp --help` of llm-d-router; the names of series are those of gateway-api-inference-extension up to 1.5.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from ...configs.data_source import MIN_INTERVAL_S, interval_of, is_source
from ...configs.engines import Selector
from ...configs.listeners import CIPHER_SUITES
from ...configs.schema import KVAtlasConfig
from ...configs.scraping import EngineConfig
from ...configs.units import Duration
from . import go_values as go

S = TypeVar("S", bound=msgspec.Struct)

Apply = Callable[[KVAtlasConfig, str], KVAtlasConfig]
"""Configuration and text of a flag -> the configuration with it; raises ValueError for a text that cannot be used."""

NAMED_ENGINE = "flags"
"""Name of the engine whose series flags name."""

_TLS_VERSIONS = {
    **dict.fromkeys(("VersionTLS10", "VersionTLS11", "VersionTLS12"), "TLSv1.2"),
    "VersionTLS13": "TLSv1.3",
}
"""Go's names -> the oldest version accepted: older ones than 1.2 are accepted by no listener."""

_SUITES_OF_TLS_13 = frozenset(
    {"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"}
)


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag.

    Attributes:
        name: without dashes.
        text: what it does here, for `--help` and the docs.
        value: word for its value; empty for a switch.
        apply: sets the configuration; None if the command itself acts on the flag, or nothing does.
        reason: why it has no effect; empty if it has one.
    """

    name: str
    text: str
    value: str = ""
    apply: Apply | None = None
    reason: str = ""

    @property
    def is_switch(self) -> bool:
        """Whether it is on or off."""
        return not self.value


def _with(section: S, path: tuple[str, ...], value: object) -> S:
    """Return a section with another value at the attributes of `path`."""
    first, *rest = path
    return replace(section, **{first: _with(getattr(section, first), tuple(rest), value) if rest else value})


def _sets(path: str, read: Callable[[str], object]) -> Apply:
    """Return what sets one value of the configuration, named by its attributes with dots between."""
    return lambda config, text: _with(config, tuple(path.split(".")), read(text))


def _drain(text: str) -> Duration:
    return Duration(max(go.seconds(text), 0.001))  # zero: at once


def _interval(config: KVAtlasConfig, text: str) -> KVAtlasConfig:
    """Set the interval, unless a plugin of the file names it: that goes before the flag, as in the reference."""
    value = Duration(max(go.seconds(text), MIN_INTERVAL_S))
    if any(is_source(plugin) and interval_of(plugin) is not None for plugin in config.plugins):
        return config
    return _with(config, ("metrics_scrape", "interval"), value)


def _positive(text: str) -> Duration:
    if not (value := go.seconds(text)):
        raise ValueError(f"found {text!r}, expected a duration above zero")
    return Duration(value)


def _longest_message(config: KVAtlasConfig, text: str) -> KVAtlasConfig:
    """Set the longest message, and let a body be as long: in the mode BUFFERED it comes in one."""
    n_bytes, ext_proc = go.size_bytes(text), config.ext_proc
    body = max(ext_proc.max_body_bytes, min(n_bytes, 2**30))
    changes = {"max_message_bytes": n_bytes, "max_body_bytes": body}
    return replace(
        config, ext_proc=replace(ext_proc, **changes, max_held_bytes=max(ext_proc.max_held_bytes, body))
    )


def _tls_version(text: str) -> str:
    if text not in _TLS_VERSIONS:
        raise ValueError(f"found {text!r}, expected {' or '.join(_TLS_VERSIONS)}")
    return _TLS_VERSIONS[text]


def _cipher_suites(text: str) -> tuple[str, ...]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in (*CIPHER_SUITES, *_SUITES_OF_TLS_13):
            raise ValueError(f"found {name!r}, expected some of {', '.join(CIPHER_SUITES)}")
    return tuple(name for name in names if name in CIPHER_SUITES)


def _metrics_certificate(config: KVAtlasConfig, folder: str) -> KVAtlasConfig:
    files = {"cert_file": f"{folder}/tls.crt", "key_file": f"{folder}/tls.key"}
    return _with(config, ("server", "metrics_tls"), replace(config.server.metrics_tls, **files))


def _series(field: str) -> Apply:
    """Return what names a series of every endpoint; the others are vLLM's unless a flag names them too."""

    def apply(config: KVAtlasConfig, text: str) -> KVAtlasConfig:
        scrape = config.metrics_scrape
        engine = scrape.engines.get(NAMED_ENGINE) or EngineConfig(
            waiting="vllm:num_requests_waiting",
            running="vllm:num_requests_running",
            kv_utilization="vllm:kv_cache_usage_perc",
            lora_info="vllm:lora_requests_info",
            cache_info="vllm:cache_config_info",
        )
        text = text.strip('"')  # charts of that time render literal quotes
        if text:
            Selector.parse(text)
        engines = {**scrape.engines, NAMED_ENGINE: replace(engine, **{field: text})}
        return replace(config, metrics_scrape=replace(scrape, engine=NAMED_ENGINE, engines=engines))

    return apply


def _off_if_set(text: str) -> bool:
    return not go.switch(text)


_ALL = (
    Flag("config-text", "EndpointPickerConfig as text, in place of --config-file.", "TEXT"),
    Flag("watch-config-file", "Whether changed files are loaded; true unless it is given as false."),
    Flag(
        "drain-timeout", "Longest wait for requests in flight at the end.", "DURATION",
        _sets("server.drain_timeout", _drain),
    ),
    Flag(
        "refresh-metrics-interval", "Time between two scrapes of a busy endpoint, at least 50ms.", "DURATION",
        _interval,
    ),
    Flag(
        "metrics-staleness-threshold", "Age above which a load is stale.", "DURATION",
        _sets("metrics_scrape.stale_after", _positive),
    ),
    Flag("total-queued-requests-metric", "Series of queued requests.", "SERIES", _series("waiting")),
    Flag("total-running-requests-metric", "Series of requests being served.", "SERIES", _series("running")),
    Flag(
        "kv-cache-usage-percentage-metric", "Series of the used part of the KV blocks, 0 to 1.", "SERIES",
        _series("kv_utilization"),
    ),
    Flag("lora-info-metric", "Series of the LoRA adapters.", "SERIES", _series("lora_info")),
    Flag("cache-info-metric", "Series of block size and number of blocks.", "SERIES", _series("cache_info")),
    Flag(
        "emit-endpoint-scores", "Whether scores go to the gateway as dynamic metadata.", "",
        _sets("ext_proc.emit_scores", go.switch),
    ),
    Flag(
        "disable-endpoint-subset-filter", "Whether the gateway's subset hint is ignored.", "",
        _sets("ext_proc.use_subset", _off_if_set),
    ),
    Flag(
        "grpc-max-recv-msg-size", "Longest message of a gateway; bodies may be as long.", "SIZE",
        _longest_message,
    ),
    Flag(
        "grpc-max-send-msg-size", "Longest message to a gateway, at least 64KiB.", "SIZE",
        _sets("ext_proc.max_sent_message_bytes", lambda text: max(go.size_bytes(text), 2**16)),
    ),
    Flag(
        "tls-min-version", "Oldest version of TLS: VersionTLS12 or VersionTLS13.", "VERSION",
        _sets("server.tls.min_version", _tls_version),
    ),
    Flag(
        "tls-cipher-suites", "Cipher suites for TLS 1.2, separated by commas.", "NAMES",
        _sets("server.tls.cipher_suites", _cipher_suites),
    ),
    Flag(
        "enable-cert-reload", "Whether changed certificates are loaded; true unless it is given as false.", "",
        _sets("server.tls.reload", go.switch),
    ),
    Flag(
        "metrics-cert-dir", "Folder with tls.crt and tls.key of /metrics, which then uses TLS.", "DIR",
        _metrics_certificate,
    ),
    Flag(
        "metrics-client-ca-file", "Authorities of the client certificates that /metrics then requires.", "FILE",
        _sets("server.metrics_tls.client_ca_file", str),
    ),
    Flag(
        "tracing", "Whether spans are sent if an endpoint is named.", "", _sets("tracing.enabled", go.switch)
    ),
    Flag("v", "Verbosity of the log: 4 and above log what --log-level debug does.", "NUMBER"),
    Flag("zap-log-level", "debug, info, error, panic, or a verbosity as of --v.", "LEVEL"),
    Flag("zap-encoder", "Form of the log's lines: json, or console for text.", "FORM"),
    Flag("zap-devel", "false: the log's lines are JSON unless --zap-encoder says otherwise."),
    Flag(
        "zap-time-encoding", "Form of times in the log: epoch, millis, nano, iso8601, rfc3339, rfc3339nano.",
        "FORM",
    ),
    Flag(
        "health-checking", "", reason="gRPC health is always answered on the ext-proc port too",
    ),
    Flag(
        "enable-grpc-stream-metrics", "",
        reason="kvatlas_open_streams and kvatlas_requests_total always count streams and their ends",
    ),
    Flag("enable-pprof", "", reason="profiles are those of Go programs"),
    Flag(
        "allow-experimental-plugins", "", reason="every type that kvatlas has may be used",
    ),
    Flag(
        "refresh-prometheus-metrics-interval", "", "DURATION",
        reason="series are computed when they are scraped",
    ),
    Flag(
        "fairness-id-metric-label-limit", "", "NUMBER", reason="no series has a label for fairness ids",
    ),
    Flag(
        "zap-stacktrace-level", "", "LEVEL", reason="a log line of an error names the code that raised it",
    ),
)  # fmt: skip

FLAGS: Mapping[str, Flag] = {flag.name: flag for flag in _ALL}
"""Name -> flag, in the order of `--help`."""
