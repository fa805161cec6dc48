"""Checks of the configuration itself, which need no process."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ...configs.endpoints import endpoint_addresses
from ...configs.listeners import TlsConfig
from ...configs.schema import EventsConfig, StaticEndpoint
from ..descriptors import process_budget
from ..errors import AuthError, TlsError
from ..http2.library import installed_library
from ..http2.native import obstacle
from ..tls.certificates import Certificates, speaks_tls
from ..tls.mismatches import REMEDIES, Spoken
from ..tokens import TokenFiles
from .check import Check, Finding, State
from .deployment import Deployment

DAYS_S = 86400.0
SOON_S = 14 * DAYS_S
"""Remaining validity of a certificate that is reported: automatic renewal has happened by then."""


def _in_force(deployment: Deployment) -> Iterator[Finding]:
    for file, why in deployment.refused.items():
        yield Finding(
            State.FAIL, f"{file} was refused: {why}", "kvatlas config check FILE, and mend what it names"
        )
    if not deployment.refused:
        yield Finding(State.OK, "what the files say is in force")


def _endpoints(deployment: Deployment) -> Iterator[Finding]:
    endpoints = deployment.config.endpoints
    n_found = len(deployment.fleet) if deployment.fleet is not None else len(endpoints.static)
    found_later = deployment.fleet is None and (endpoints.file or endpoints.kubernetes.is_on)
    if n_found or found_later:
        yield Finding(
            State.OK, f"{n_found} endpoints" if n_found else "endpoints are found by the running process"
        )
    else:
        remedy = "endpoints.static: [{name: vllm-0, address: HOST:PORT}]"
        if endpoints.file:
            remedy = f"{endpoints.file}: a list with {{name: vllm-0, address: HOST:PORT}}; it has none"
        yield Finding(State.FAIL, "0 endpoints", "" if endpoints.kubernetes.is_on else remedy)


def _ports(deployment: Deployment) -> Iterator[Finding]:
    collisions, events = False, deployment.config.events
    for endpoint in deployment.config.endpoints.static:
        if _are_apart(endpoint, events):
            continue
        ranks = endpoint_addresses(endpoint, events).ranks
        shared = {rank.events for rank in ranks} & {rank.replay for rank in ranks} - {None}
        for address in sorted(each for each in shared if each is not None):
            collisions = True
            yield Finding(
                State.FAIL,
                f"{endpoint.name}: {address} is one rank's events and another's replay, of {len(ranks)} ranks",
                f"events.replayPort: at least dataParallelSize {len(ranks)} above events.port; the same in the engine",
            )
    if not collisions:
        yield Finding(State.OK, "events and replay of all ranks have ports of their own")


def _are_apart(endpoint: StaticEndpoint, events: EventsConfig) -> bool:
    """Return whether the ports as written leave enough room for the ranks; False also if that cannot be seen.

    All addresses of an endpoint would take thirty times as long, and those of 1,000 the event loop for 30 ms.
    """
    published = events.bind if events.mode == "bind" else endpoint.events
    sockets = ((published, events.port), (endpoint.replay, events.replay_port))
    ports = [port if written is None else written.rpartition(":")[2] for written, port in sockets]
    if endpoint.events == "" or endpoint.replay == "":
        return True  # no events, or no replay
    numbers = [int(port) for port in ports if str(port).isdecimal()]
    return len(numbers) == len(ports) and abs(numbers[0] - numbers[1]) >= endpoint.data_parallel_size


def _guarded(deployment: Deployment) -> Iterator[Finding]:
    server, rest = deployment.config.server, deployment.config.rest
    if "*" in rest.allowed_hosts and not (server.auth.bearer_token_file and server.auth.protect_reads):
        yield Finding(
            State.WARN,
            "rest.allowedHosts has '*', so that a page of any site can call kvatlas through an operator's browser",
            "rest.allowedHosts: the names of kvatlas alone; or server.auth: {bearerTokenFile: FILE, protectReads: true}",
        )
    elif not server.rest:
        yield Finding(State.OK, "REST is off")
    elif server.auth.bearer_token_file:
        yield Finding(State.OK, "changes need the token of server.auth.bearerTokenFile")
    elif server.tls.client_ca_file and server.tls.http:
        yield Finding(State.OK, "changes need a client certificate")
    else:
        yield Finding(State.OK, "without a token, changes are accepted from this machine alone")


def _secrets(deployment: Deployment) -> Iterator[Finding]:
    server, has_tokens = deployment.config.server, True
    try:
        has_tokens = bool(TokenFiles(server.auth))
        if has_tokens:
            yield Finding(State.OK, "tokens can be read")
    except AuthError as error:
        yield Finding(State.FAIL, str(error), "the file that the message names")
    certificates = {"server.tls": server.tls} if server.tls.cert_file else {}
    if server.metrics_tls.cert_file:
        certificates["server.metricsTls"] = server.metrics_tls.beside(server.tls)
    for section, tls in certificates.items():
        yield _certificate(section, tls, deployment.wall)
    if not has_tokens and not certificates:
        yield Finding(State.OK, "neither token nor certificate is configured")


def _certificate(section: str, tls: TlsConfig, wall: float) -> Finding:
    """Return whether the files of a section can be used, and for how long."""
    try:
        left_s = Certificates(tls, section=section).current().not_after - wall
    except TlsError as error:
        return Finding(State.FAIL, str(error), "the file that the message names")
    return Finding(
        State.FAIL if left_s < 0 else State.WARN if left_s < SOON_S else State.OK,
        f"{tls.cert_file} ends in {left_s / DAYS_S:.1f} days",
        f"{section}.certFile, keyFile: a renewed pair in the same files; no restart is needed",
    )


def _agreed(deployment: Deployment) -> Iterator[Finding]:
    counts, name = deployment.counts, "kvatlas_tls_mismatches_total"
    has_requests = bool(counts.total("kvatlas_picks_total") + counts.total("kvatlas_refusals_total"))
    has_findings = False
    pairs: tuple[tuple[Spoken, str], ...] = (("plaintext", "TLS"), ("tls", "plain text"))
    for spoken, listens in pairs:
        for listener, number in counts.by("listener", name, peer=spoken).items():
            has_findings = True
            is_mute = listener == "server.extProc" and not has_requests
            came = "plain text" if spoken == "plaintext" else "TLS"
            yield Finding(
                State.FAIL if is_mute else State.WARN,
                f"{listener} listens with {listens}: {number:.0f} connections came with {came}",
                REMEDIES[spoken],
            )
    if not has_findings:
        yield Finding(State.OK, "no connection came with TLS to plain text, or the reverse")


def _fast(deployment: Deployment) -> Iterator[Finding]:
    core = deployment.fleet.atlas.core.name if deployment.fleet is not None else "native"
    if core == "native":
        yield Finding(State.OK, "the index runs in C++")
    else:
        yield Finding(
            State.WARN,
            "the index runs in Python",
            "pip install kvatlas where a C++20 compiler is; no KVATLAS_INDEX",
        )


def _descriptors(deployment: Deployment) -> Iterator[Finding]:
    fleet = deployment.fleet
    if fleet is None:
        budget = process_budget(deployment.config)
    else:
        n_ranks = sum(len(endpoint.ranks) for endpoint in fleet)
        budget = process_budget(deployment.config, n_ranks=n_ranks, n_endpoints=len(fleet))
    if budget.limit >= budget.needed:
        yield Finding(State.OK, f"{budget.limit} descriptors, and {budget.needed} are needed at most")
    else:
        yield Finding(
            State.WARN,
            f"{budget.limit} descriptors, and {budget.needed} are needed at most",
            "raise the limit (ulimit -n, LimitNOFILE), or rest.maxConnections and extProc.maxConnections: fewer",
        )


def _http2(deployment: Deployment) -> Iterator[Finding]:
    ext_proc = deployment.config.ext_proc
    if ext_proc.transport == "grpc":
        yield Finding(State.OK, "ext-proc does not use libnghttp2")
        return
    missing = obstacle(
        with_tls=speaks_tls(deployment.config.server.tls, by_default=ext_proc.compat == "llm-d")
    )
    library = installed_library()
    if missing is not None or library is None:
        yield Finding(
            State.WARN,
            f"ext-proc runs on grpc.aio, at several times the cost: {missing}",
            "libnghttp2.so.14 (Debian: libnghttp2-14), for TLS libssl.so.3 (Debian: libssl3 or libssl3t64), and "
            "pip install kvatlas where a C++20 compiler is",
        )
        return
    for attack in library.unfixed:
        yield Finding(
            State.WARN,
            f"libnghttp2 {library.version} is open to {attack}",
            "libnghttp2 1.61 or later, or the security update of the distribution; then a restart",
        )
    if not library.unfixed:
        yield Finding(State.OK, f"libnghttp2 {library.version} has the fixes of known attacks")


def _recorded(deployment: Deployment) -> Iterator[Finding]:
    counts = deployment.counts
    folder = deployment.config.recorder.folder
    fates = counts.by("outcome", "kvatlas_recorder_requests_total")
    if not folder:
        yield Finding(State.OK, "nothing is to be recorded")
    elif counts.total("kvatlas_recorder_failing"):
        yield Finding(
            State.FAIL,
            f"{folder} could not be written at the last try; {fates.get('not_written', 0):.0f} requests are lost",
            "recorder.folder: a folder that kvatlas may write to, with room for recorder.maxMebibytes",
        )
    elif fates.get("overload"):
        yield Finding(
            State.WARN,
            f"{fates['overload']:.0f} requests are lost, since too many waited to be written",
            "recorder.folder: a folder on a faster disk; or recorder.blockSize: 512",
        )
    else:
        yield Finding(State.OK, f"{fates.get('recorded', 0):.0f} requests are in the traces")


def _saved(deployment: Deployment) -> Iterator[Finding]:
    counts, file = deployment.counts, deployment.config.snapshot.file
    n_failed = counts.total("kvatlas_snapshot_failures_total")
    if not file:
        yield Finding(State.OK, "no snapshot is to be written")
    elif counts.total("kvatlas_snapshot_failing"):
        (age_s,) = counts.values("kvatlas_snapshot_age_seconds")
        newest = "there is none" if math.isnan(age_s) else f"the newest is {age_s:.0f} s old"
        yield Finding(
            State.FAIL,
            f"{file} could not be written at the last of {n_failed:.0f} failed tries; {newest}",
            "snapshot.file: a file in a folder that kvatlas may write to, with space for twice its size",
        )
    elif n_written := counts.total("kvatlas_snapshot_writes_total"):
        yield Finding(State.OK, f"{n_written:.0f} snapshots were written to {file}")
    else:
        yield Finding(
            State.UNKNOWN,
            f"the first snapshot is written {deployment.config.snapshot.interval} after the start",
        )


CHECKS = (
    Check(
        "configuration-in-force",
        "Is what the files say in force?",
        "the configuration before stays, and a restart would fail",
        _in_force,
    ),
    Check(
        "endpoints-there",
        "Are there endpoints?",
        "every request gets 503",
        _endpoints,
        needs_process=False,
    ),
    Check(
        "ports-apart",
        "Have all ranks ports of their own?",
        "events of some ranks are lost",
        _ports,
        needs_process=False,
    ),
    Check(
        "changes-guarded",
        "Are changes accepted from the operator alone?",
        "others can change where requests go",
        _guarded,
        needs_process=False,
    ),
    Check(
        "secrets-usable",
        "Can token and certificate be used, and for how long?",
        "gateways or operators are turned away",
        _secrets,
        needs_process=False,
    ),
    Check(
        "tls-agreed",
        "Do peers and listeners agree about TLS?",
        "the gateway answers such requests with 500, or sends them anywhere",
        _agreed,
    ),
    Check(
        "descriptors-suffice",
        "May the process open enough sockets?",
        "at the limit new endpoints are not followed, and new connections close older ones",
        _descriptors,
    ),
    Check(
        "native-index",
        "Does the index run in C++?",
        "matching and taking events need many times the CPU time",
        _fast,
    ),
    Check(
        "http2-library",
        "Does libnghttp2 have the fixes of known attacks?",
        "one connection to the ext-proc port can take most of the CPU",
        _http2,
        needs_process=False,
    ),
    Check(
        "traces-written",
        "Are requests recorded where that is wanted?",
        "traces lack requests, and replays of them show less load than there was",
        _recorded,
    ),
    Check(
        "snapshots-written",
        "Are snapshots written where they are wanted?",
        "the next start begins with an older snapshot, or with nothing",
        _saved,
    ),
)
