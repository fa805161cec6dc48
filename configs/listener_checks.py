"""Checks of listeners beyond the types of the schema: addresses, ports, TLS, and limits that contradict each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .address import MAX_PORT, HostPort
from .errors import KeyPath, Problem, path_text
from .listeners import (
    MAX_GATHER_S,
    ExtProcConfig,
    MetricsTlsConfig,
    RestConfig,
    ServerConfig,
    TlsConfig,
)
from .networks import parse_network
from .problems import malformed, repeated
from .schema import KVAtlasConfig

_ONE_EACH = ("rest", "metrics")
"""Listeners of which each worker has its own; the others are shared."""

MIN_WORKER_TIMEOUT_S = 1.0
"""A busy machine stops a process for some tenths of a second."""


def listener_problems(config: KVAtlasConfig) -> Iterator[Problem]:
    """Yield the problems of `server`, `extProc` and `rest`."""
    yield from _server_problems(config.server)
    yield from _ext_proc_problems(config.ext_proc)
    yield from _rest_problems(config.rest)


def _rest_problems(rest: RestConfig) -> Iterator[Problem]:
    for number, text in enumerate(rest.register_allow):
        yield from malformed(("rest", "registerAllow", number), text, parse_network)


def _server_problems(server: ServerConfig) -> Iterator[Problem]:
    taken: list[tuple[KeyPath, str]] = []
    listeners = {
        "extProc": server.ext_proc,
        "health": server.health,
        "rest": server.rest,
        "metrics": server.metrics,
    }
    for name, text in listeners.items():
        path: KeyPath = ("server", name)
        if not text:
            continue
        yield from malformed(path, text, _check_listener)
        if not text.endswith(":0"):
            taken.append((path, text))
    if server.proxy_admin:
        yield from malformed(("server", "proxyAdmin"), server.proxy_admin, HostPort.parse)
    yield from repeated(taken, "address")
    yield from _worker_problems(server.workers, taken)
    if server.worker_timeout < MIN_WORKER_TIMEOUT_S:
        message = f"found {server.worker_timeout}, expected at least {MIN_WORKER_TIMEOUT_S:g}s"
        yield Problem(f"{message}; a busy worker would be killed", ("server", "workerTimeout"))
    yield from _tls_problems(server.tls)
    yield from _pair_problems(("server", "metricsTls"), server.metrics_tls)
    if server.auth.protect_reads and not server.auth.bearer_token_file:
        message = "found none together with protectReads, expected the file with the token"
        yield Problem(message, ("server", "auth", "bearerTokenFile"))
    if server.auth.metrics_review and server.auth.metrics_token_file:
        message = "found true together with metricsTokenFile; keep one of the two"
        yield Problem(message, ("server", "auth", "metricsReview"))


def _worker_problems(n_workers: int, listeners: Sequence[tuple[KeyPath, str]]) -> Iterator[Problem]:
    """Yield ports of several workers that collide with those of another listener, or are above 65535."""
    if n_workers == 1:
        return
    taken: dict[int, str] = {}
    for path, text in listeners:
        try:
            first = HostPort.parse(text, lowest_port=0).port
        except ValueError:
            continue  # already reported
        n_ports = n_workers if path[-1] in _ONE_EACH else 1
        if first + n_ports - 1 > MAX_PORT:
            yield Problem(f"found {text!r}, but {n_workers} workers need ports above {MAX_PORT}", path)
        for port in range(first, first + n_ports):
            if port in taken:
                message = (
                    f"found {text!r}: with {n_workers} workers, port {port} is also one of {taken[port]}"
                )
                yield Problem(f"{message}; leave that many ports between listeners", path)
                break
        taken |= dict.fromkeys(range(first, first + n_ports), path_text(path))


def _tls_problems(tls: TlsConfig) -> Iterator[Problem]:
    path: KeyPath = ("server", "tls")
    yield from _pair_problems(path, tls)
    if tls.self_signed is True and tls.cert_file:
        yield Problem("found true together with certFile; keep one of the two", (*path, "selfSigned"))
    if tls.client_ca_file and not tls.cert_file and tls.self_signed is not True:
        yield Problem("found a file without certFile, which switches TLS on", (*path, "clientCaFile"))


def _pair_problems(path: KeyPath, tls: TlsConfig | MetricsTlsConfig) -> Iterator[Problem]:
    if bool(tls.cert_file) != bool(tls.key_file):
        missing = "certFile" if tls.key_file else "keyFile"
        yield Problem("found none, expected the file that belongs to the other", (*path, missing))
    if isinstance(tls, MetricsTlsConfig) and tls.client_ca_file and not tls.cert_file:
        yield Problem("found a file without certFile, which switches TLS on", (*path, "clientCaFile"))


def _check_listener(text: str) -> None:
    HostPort.parse(text, lowest_port=0)


def _ext_proc_problems(ext_proc: ExtProcConfig) -> Iterator[Problem]:
    if ext_proc.gather > MAX_GATHER_S:
        message = f"found {ext_proc.gather}, expected at most {MAX_GATHER_S * 1000:.0f}ms"
        yield Problem(
            f"{message}; every token of a busy fleet would wait for that long", ("extProc", "gather")
        )
    if ext_proc.max_held_bytes < ext_proc.max_body_bytes:
        message = (
            f"found {ext_proc.max_held_bytes}, expected at least maxBodyBytes of {ext_proc.max_body_bytes}"
        )
        yield Problem(f"{message}; the longest bodies would never be read", ("extProc", "maxHeldBytes"))
