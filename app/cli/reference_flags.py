"""The reference endpoint picker's command line, as ours.

Its flags are Go's: a switch stands alone or has its value behind `=`, any flag may begin with one dash, the last of
several counts, and charts write `--name=value` or the two apart.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

SWITCHES = frozenset({"secure-serving", "ha-enable-leader-election"})
"""Flags of the reference that are on or off, and mean the same here."""

NO_SWITCHES = frozenset(
    "health-checking enable-cert-reload metrics-endpoint-auth enable-grpc-stream-metrics enable-pprof tracing"
    " allow-experimental-plugins disable-endpoint-subset-filter emit-endpoint-scores zap-devel".split()
)
"""Switches of the reference that have no effect here."""

NO_VALUES = frozenset(
    "grpc-max-recv-msg-size grpc-max-send-msg-size refresh-metrics-interval refresh-prometheus-metrics-interval"
    " metrics-staleness-threshold drain-timeout tls-min-version tls-cipher-suites metrics-cert-dir"
    " metrics-client-ca-file zap-encoder zap-log-level zap-stacktrace-level zap-time-encoding v"
    " total-queued-requests-metric total-running-requests-metric kv-cache-usage-percentage-metric lora-info-metric"
    " cache-info-metric".split()
)
"""Flags of the reference that have a value, and no effect here."""

_BOOLEANS: Mapping[str, str] = {
    **{text: "true" for text in ("1", "t", "T", "TRUE", "true", "True")},  # noqa: C420 - fromkeys narrows the type
    **{text: "false" for text in ("0", "f", "F", "FALSE", "false", "False")},  # noqa: C420 - the same
}


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A command line as our parser takes it.

    Attributes:
        arguments: flags and their values.
        without_effect: flags of the reference that were left out, in order.
    """

    arguments: tuple[str, ...]
    without_effect: tuple[str, ...]


def our_command_line(arguments: Sequence[str]) -> CommandLine:
    """`arguments` of `serve` with the reference's flags in our form; anything unknown is left to our parser to refuse."""
    ours: list[str] = []
    without_effect: list[str] = []
    rest = deque(arguments)
    while rest:
        argument = rest.popleft()
        name, equals, value = argument.lstrip("-").partition("=")
        if not argument.startswith("-"):
            if argument:  # charts may render nothing as an argument of its own
                ours.append(argument)
        elif name in SWITCHES | NO_SWITCHES:
            if not equals:  # Go takes no value that stands apart, but who writes one means it
                value = rest.popleft() if rest and rest[0] in _BOOLEANS else "true"
            if name in SWITCHES:
                # what is no truth value is left to our parser to refuse
                ours.append(f"--{name}={_BOOLEANS.get(value, value)}")
            else:
                without_effect.append(f"--{name}")
        elif name in NO_VALUES:
            without_effect.append(f"--{name}")
            if not equals and rest:
                rest.popleft()
        else:
            ours.append(argument)
            if not equals and rest and not rest[0]:  # the value that switches a listener off
                ours.append(rest.popleft())
    return CommandLine(tuple(ours), tuple(without_effect))
