"""Translation of the reference endpoint picker's command line into ours.

Its flags are Go's: a switch stands alone or has its value after `=`, any flag may begin with one dash, the last of
several counts, and charts write `--name=value` or `--name value`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

SWITCHES = frozenset({"secure-serving", "ha-enable-leader-election", "metrics-endpoint-auth"})
"""Flags of the reference that are on or off, and mean the same here."""

NO_SWITCHES = frozenset(
    "health-checking enable-cert-reload enable-grpc-stream-metrics enable-pprof tracing"
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
"""Flags of the reference with a value that have no effect here."""

_BOOLEANS: Mapping[str, str] = {
    **{text: "true" for text in ("1", "t", "T", "TRUE", "true", "True")},  # noqa: C420 - fromkeys narrows the type
    **{text: "false" for text in ("0", "f", "F", "FALSE", "false", "False")},  # noqa: C420 - the same
}


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A command line for our parser.

    Attributes:
        arguments: flags and their values.
        without_effect: flags of the reference that were left out, in order.
    """

    arguments: tuple[str, ...]
    without_effect: tuple[str, ...]


def our_command_line(arguments: Sequence[str]) -> CommandLine:
    """Return the arguments of `serve` with the reference's flags in our form; our parser refuses unknown ones."""
    ours: list[str] = []
    without_effect: list[str] = []
    rest = deque(arguments)
    while rest:
        argument = rest.popleft()
        name, equals, value = argument.lstrip("-").partition("=")
        if not argument.startswith("-"):
            if argument:  # charts may render an empty argument
                ours.append(argument)
        elif name in SWITCHES | NO_SWITCHES:
            if not equals:  # Go ignores a separate value, but whoever writes one means it
                value = rest.popleft() if rest and rest[0] in _BOOLEANS else "true"
            if name in SWITCHES:
                # our parser refuses anything else
                ours.append(f"--{name}={_BOOLEANS.get(value, value)}")
            else:
                without_effect.append(f"--{name}")
        elif name in NO_VALUES:
            without_effect.append(f"--{name}")
            if not equals and rest:
                rest.popleft()
        else:
            ours.append(argument)
            if not equals and rest and not rest[0]:  # switches the listener off
                ours.append(rest.popleft())
    return CommandLine(tuple(ours), tuple(without_effect))
