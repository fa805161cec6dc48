"""Sections for listeners: addresses, certificate, tokens, limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta
from msgspec.structs import replace

from .paths import PathText
from .section import HeldBytes, Section
from .units import Duration

CIPHER_SUITES: Mapping[str, str] = {
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
}
"""Cipher suites of TLS 1.2 by their standard names -> OpenSSL's names. HTTP/2 forbids all others that are in use.

Source: RFC 9113, appendix A.
"""

CipherSuite: TypeAlias = Literal[
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
]

MAX_GATHER_S = 0.05
DRAIN_S = 30.0
"""Default of `server.drainTimeout`, and longest wait for requests in flight when a process stops."""

HOST_PATTERN = r"^(\*|(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?)$"

HostPattern: TypeAlias = Annotated[str, Meta(pattern=HOST_PATTERN, max_length=253)]
"""Name of a host; `*.` in front: every name below it; `*`: every name."""


class TlsConfig(Section, frozen=True):
    """Certificate of the listeners; without one there is no TLS."""

    cert_file: PathText = ""
    """PEM file with the certificate and its chain."""
    key_file: PathText = ""
    """PEM file with its private key."""
    client_ca_file: PathText = ""
    """PEM file with the authorities of client certificates, which are then required; empty: any client may connect."""
    reload: bool = True
    """Whether new connections get the new certificate if the files change."""
    min_version: Literal["TLSv1.2", "TLSv1.3"] = "TLSv1.2"
    """Oldest version of TLS that clients may use."""
    cipher_suites: tuple[CipherSuite, ...] = ()
    """Cipher suites that clients may use with TLS 1.2, by their standard names; empty: all that HTTP/2 allows on `extProc`, those of OpenSSL elsewhere."""

    self_signed: bool | Literal["auto"] = "auto"
    """Whether to make a certificate at the start if there is no file; auto: for `extProc` with `compat: llm-d`, as the reference does."""
    http: bool = True
    """Whether `rest` and `metrics` use TLS too; the reference's flags switch it on for `extProc` only."""

    @property
    def restricts_clients(self) -> bool:
        """Whether versions or cipher suites are other than by default."""
        return self.min_version != "TLSv1.2" or bool(self.cipher_suites)


class MetricsTlsConfig(Section, frozen=True):
    """Certificate of `metrics` alone, in place of the one of `tls`, whose other keys hold for it too."""

    cert_file: PathText = ""
    """PEM file with the certificate and its chain; empty: `metrics` is as `tls` says."""
    key_file: PathText = ""
    """PEM file with its private key."""
    client_ca_file: PathText = ""
    """PEM file with the authorities of client certificates, which are then required; empty: any client may connect."""

    def beside(self, tls: TlsConfig) -> TlsConfig:
        """Return the TLS of `metrics`, with the versions and cipher suites of the other listeners."""
        if not self.cert_file:
            return tls
        files = {
            "cert_file": self.cert_file,
            "key_file": self.key_file,
            "client_ca_file": self.client_ca_file,
        }
        return replace(tls, **files, self_signed=False, http=True)


class AuthConfig(Section, frozen=True):
    """Authorization of REST calls."""

    bearer_token_file: PathText = ""
    """File with the token that calls which change state require; reloaded when it changes; empty: they must come from this machine."""
    protect_reads: bool = False
    """Whether all other calls require it too, except `/healthz` and `/readyz`."""
    metrics_token_file: PathText = ""
    """File with the token that `/metrics` requires, on both listeners; reloaded when it changes; empty: as other reads on `rest`, none on `metrics`."""
    metrics_review: bool = False
    """Whether the cluster decides about calls of `/metrics`, on both listeners, by TokenReview and SubjectAccessReview; the default of the reference's flags alone."""


class ServerConfig(Section, frozen=True):
    """Listeners, each `HOST:PORT`; an empty string switches one off, port 0 selects a free port."""

    ext_proc: str = "0.0.0.0:9002"
    """Envoy ext-proc gRPC and gRPC health."""
    health: str = "0.0.0.0:9003"
    """Only gRPC health."""
    rest: str = "0.0.0.0:8080"
    """REST, OpenAPI, and the dashboard at `/ui`."""
    metrics: str = "0.0.0.0:9090"
    """Prometheus `/metrics`, also served on `rest`."""
    workers: Annotated[int, Meta(ge=1, le=64)] = 1
    """Processes, one per core, that decide as one: on one port of extProc and health, and on successive ports of REST and metrics."""
    worker_timeout: Duration = Duration(30.0)
    """Time after which a worker whose event loop no longer runs is killed and started again; as long as kubelet's probes wait."""
    drain_notice: Duration = Duration(2.5)
    """Time in which a process that ends still takes new requests, for gateways to notice; two and a half health-check intervals of the shipped ones."""
    drain_timeout: Duration = Duration(DRAIN_S)
    """Longest time for which a process that ends waits for the requests in flight."""
    proxy_admin: str = ""
    """Admin interface, `HOST:PORT`, of an Envoy in the same pod that ends after this process, which then has it close its clients' connections; empty: none."""
    tls: TlsConfig = TlsConfig()
    """TLS."""
    metrics_tls: MetricsTlsConfig = MetricsTlsConfig()
    """TLS of `metrics` alone, with a certificate of its own in place of the one of `tls`."""
    auth: AuthConfig = AuthConfig()
    """Authorization."""


ExtProcTransport: TypeAlias = Literal["auto", "http2", "grpc"]
"""Implementation of the ext-proc server: libnghttp2 or the `grpc.aio` library."""


class ExtProcConfig(Section, frozen=True):
    """Responses and limits of ext-proc streams."""

    fallback_endpoints: Annotated[int, Meta(ge=0, le=64)] = 0
    """Further endpoints in the response, best first, for retries of the gateway."""
    max_body_bytes: Annotated[int, Meta(ge=1, le=1073741824)] = 33554432
    """Longest request body in bytes; a longer one gets 413."""
    max_held_bytes: HeldBytes = 536870912
    """Bytes of bodies, partial messages and unsent answers held for all streams; a request above the limit is routed at once, without its prefix."""
    max_pending_requests: Annotated[int, Meta(ge=1)] = 10000
    """Requests whose body is being received or which are being routed; one more is routed at once, without its prefix."""
    max_connections: Annotated[int, Meta(ge=1, le=65536)] = 1024
    """Connections of gateways, fewer if the process may open few descriptors; one more closes one without requests (the oldest that has not greeted, or else the one silent for the longest time), or is closed itself."""
    max_streams: Annotated[int, Meta(ge=1, le=1000000)] = 40000
    """Requests in flight, responses included, of all gateways; one more is refused; the circuit breakers of the gateways should be as wide."""
    request_timeout: Duration = Duration(30.0)
    """Longest time from a request's headers to the end of its body; after it the request is routed at once, without its prefix."""
    max_message_bytes: Annotated[int, Meta(ge=1, le=2147483647)] | None = None
    """Longest message of a gateway; absent: fits a body of `maxBodyBytes`, which comes in one message in the mode BUFFERED."""
    max_sent_message_bytes: Annotated[int, Meta(ge=65536, le=2147483647)] = 2147483647
    """Longest message to a gateway; only a rewritten body in the mode BUFFERED makes one of more than 64 KiB."""
    use_subset: bool = True
    """Whether the gateway may restrict the endpoints of a request by a subset hint."""
    emit_scores: bool = False
    """Whether the total score of each endpoint goes to the gateway as dynamic metadata."""
    read_usage: bool = True
    """Whether token counts are read from the responses that the gateway sends to kvatlas."""
    transport: ExtProcTransport = "auto"
    """Server: http2 with the libnghttp2 of the machine, or grpc with the `grpc.aio` library at several times the cost; auto: http2 if libnghttp2 is installed."""
    threads: Annotated[int, Meta(ge=1, le=64)] | Literal["auto"] = "auto"
    """Threads of the http2 server for connections, TLS and chunks of responses; auto: the cores but one, divided among `server.workers`, 1 to 8."""
    gather: Duration = Duration(0.002)
    """Longest time between two readings of a thread that reads nothing but chunks of responses, so that one reading brings about twelve; at most 50ms. Requests, and chunks that come seldom, do not wait."""
    compat: Literal["none", "llm-d"] = "none"
    """llm-d: behave like the reference picker where it differs from the written protocol."""


class RestConfig(Section, frozen=True):
    """Limits of REST calls."""

    allowed_hosts: tuple[HostPattern, ...] = ()
    """Names under which browsers and clients reach `rest`, beside IP addresses, names without dots and `*.svc`; `*.corp.example`: all below."""
    register_allow: tuple[str, ...] = ()
    """Networks of the addresses that `/register` accepts, such as 10.0.0.0/8; a name is then refused. Empty: any address."""
    max_registered: Annotated[int, Meta(ge=0, le=100000)] = 1024
    """Registered ranks of all instances; one more gets 503. They take at most half of the open files that the process may have."""

    max_body_bytes: Annotated[int, Meta(ge=1, le=1073741824)] = 8388608
    """Longest body of `/query`, `/query_by_hash` and `/v1/score`; a longer one gets 413. The default fits the million token ids that `tokenization.maxReadingCost` allows; other calls: 256 KiB."""
    max_held_bytes: HeldBytes = 268435456
    """Bytes of all bodies; above it, the body that has been coming for longest gets 503."""
    max_connections: Annotated[int, Meta(ge=8, le=1048576)] = 1024
    """Connections of each of `server.rest` and `server.metrics`, fewer if the process may open few descriptors; one more takes the place of the one that has waited longest for a request."""
    request_timeout: Duration = Duration(10.0)
    """Longest time for the headers of a call, for its body, and for taking a response; then the connection is closed."""
    max_pending_requests: Annotated[int, Meta(ge=1)] = 256
    """Concurrent calls whose body is complete; one more gets 503, except `/healthz` and `/readyz`."""
    max_live_viewers: Annotated[int, Meta(ge=0, le=1024)] = 32
    """Concurrent viewers of the dashboard or `/v1/live`; one more gets 503."""
