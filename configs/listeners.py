"""Sections of the configuration file about who is listened to: addresses, certificate, token, limits."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta

from .paths import PathText
from .section import Section


class TlsConfig(Section, frozen=True):
    """The certificate of the listeners; files may be replaced while the process runs. Without one, all talk in the clear."""

    cert_file: PathText = ""
    """PEM file with the certificate and those that vouch for it."""
    key_file: PathText = ""
    """PEM file with its private key."""
    client_ca_file: PathText = ""
    """PEM file with certificates that vouch for clients, which must then show one; empty lets all in."""
    self_signed: bool | Literal["auto"] = "auto"
    """Make a certificate at the start when there is no file; auto: for `extProc` with `compat: llm-d`, as the reference does."""
    http: bool = True
    """Whether `rest` and `metrics` have it too; the reference's flags switch TLS on for `extProc` alone."""


class AuthConfig(Section, frozen=True):
    """Who may call REST."""

    bearer_token_file: PathText = ""
    """File with the token that calls which change something must bring; read again when it changes; empty: all may call."""
    protect_reads: bool = False
    """Whether all other calls need it too, but `/healthz` and `/readyz`."""
    metrics_token_file: PathText = ""
    """File with the token that `/metrics` wants, on both listeners; read again when it changes; empty: as other reads, and none on `metrics`."""


class ServerConfig(Section, frozen=True):
    """Listeners, each `HOST:PORT`; an empty string switches one off, port 0 takes a free port."""

    ext_proc: str = "0.0.0.0:9002"
    """Envoy ext-proc gRPC and gRPC health."""
    health: str = "0.0.0.0:9003"
    """gRPC health alone."""
    rest: str = "0.0.0.0:8080"
    """REST, OpenAPI, and the dashboard at `/ui`."""
    metrics: str = "0.0.0.0:9090"
    """Prometheus `/metrics`, also served on `rest`."""
    workers: Annotated[int, Meta(ge=1, le=64)] = 1
    """Processes, each with its own index, on successive ports of every listener: a core for each."""
    tls: TlsConfig = TlsConfig()
    """TLS."""
    auth: AuthConfig = AuthConfig()
    """Authorization."""


ExtProcTransport: TypeAlias = Literal["auto", "http2", "grpc"]
"""What carries the calls of ext-proc: libnghttp2, or the `grpc.aio` library."""


class ExtProcConfig(Section, frozen=True):
    """What ext-proc streams get, and what they may hold."""

    fallback_endpoints: Annotated[int, Meta(ge=0, le=64)] = 0
    """Endpoints named after the picked one, next best first, for the gateway's retries."""
    max_body_bytes: Annotated[int, Meta(ge=1, le=1073741824)] = 67108864
    """Longest request body; a longer one gets 413."""
    max_held_bytes: Annotated[int, Meta(ge=1)] = 536870912
    """Bodies held over all streams; a request past it is routed at once, without its prefix."""
    max_pending_requests: Annotated[int, Meta(ge=1)] = 10000
    """Requests being collected or routed; one more is routed at once, without its prefix."""
    read_usage: bool = True
    """Whether token counts are read out of responses that the gateway shows."""
    transport: ExtProcTransport = "auto"
    """What carries the calls: http2, on the machine's libnghttp2, or grpc, the `grpc.aio` library at several times the cost; auto: http2 where that library is."""
    compat: Literal["none", "llm-d"] = "none"
    """llm-d: do as the reference picker does where it differs from the written protocol."""


class RestConfig(Section, frozen=True):
    """What REST calls may hold."""

    max_body_bytes: Annotated[int, Meta(ge=1, le=1073741824)] = 16777216
    """Longest request body; a longer one gets 413. The default has room for two million token ids."""
    max_pending_requests: Annotated[int, Meta(ge=1)] = 256
    """Calls being answered at once; one more gets 503, but of `/healthz` and `/readyz`."""
    max_live_viewers: Annotated[int, Meta(ge=0, le=1024)] = 32
    """Viewers of the dashboard or `/v1/live` at once; one more gets 503."""
