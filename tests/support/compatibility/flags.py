"""Command-line flags of the reference picker.

Source: `epp --help` of llm-d-router at ebab68792, and its newer ones in pkg/epp/server/options.go and docs.
"""

from __future__ import annotations

from collections.abc import Iterator

import typer

from kvatlas.app.cli.flag_table import FLAGS
from kvatlas.app.cli.main import app

NAMES = (
    "allow-experimental-plugins cache-info-metric cert-path config-file config-text disable-endpoint-subset-filter drain-timeout"
    " emit-endpoint-scores enable-cert-reload enable-grpc-stream-metrics enable-pprof endpoint-selector endpoint-target-ports"
    " fairness-id-metric-label-limit grpc-health-port grpc-max-recv-msg-size grpc-max-send-msg-size grpc-port"
    " ha-enable-leader-election health-checking kv-cache-usage-percentage-metric lora-info-metric metrics-cert-dir"
    " metrics-client-ca-file metrics-endpoint-auth metrics-port metrics-staleness-threshold pool-group pool-name pool-namespace"
    " refresh-metrics-interval refresh-prometheus-metrics-interval secure-serving tls-cipher-suites tls-min-version"
    " total-queued-requests-metric total-running-requests-metric tracing v watch-config-file zap-devel zap-encoder zap-log-level"
    " zap-stacktrace-level zap-time-encoding"
).split()
"""Flags, without dashes."""


def flag_rows() -> Iterator[tuple[str, str]]:
    """Yield each flag with what it does here: the help of ours, or why it has no effect."""
    helps = _helps()
    for name in NAMES:
        flag = FLAGS.get(name)
        if flag is not None:
            yield f"`--{name}`", f"no effect: {flag.reason}" if flag.reason else flag.text
        else:
            yield f"`--{name}`", helps.get(name, "refused")


def _helps() -> dict[str, str]:
    """Return the help of each option of `kvatlas serve`, by its name without dashes."""
    serve = typer.main.get_group(app).commands["serve"]
    return {
        option.removeprefix("--"): " ".join(str(getattr(param, "help", "")).split())
        for param in serve.params
        for option in (*param.opts, *param.secondary_opts)
    }
