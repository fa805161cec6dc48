"""Defaults of the reference picker, for a process that is started by its flags and file alone."""

from __future__ import annotations

from msgspec.structs import replace

from .endpoint_picker import default_config
from .listeners import AuthConfig, ServerConfig, TlsConfig
from .schema import KVAtlasConfig


def with_reference_defaults(config: KVAtlasConfig) -> KVAtlasConfig:
    """Return the configuration with the reference's listeners, its dialect of ext-proc, and its plugins if it has none.

    The listeners are ext-proc with TLS, health, and `/metrics` with reviews.

    Source: `--secure-serving` and `--metrics-endpoint-auth` are true by default, and there is no further listener.
    """
    server: ServerConfig = replace(
        config.server,
        rest="",
        tls=TlsConfig(self_signed=True, http=False),
        auth=AuthConfig(metrics_review=True),
    )
    if not config.plugins:
        default = default_config()
        config = replace(config, plugins=default.plugins, scheduling_profiles=default.scheduling_profiles)
    return replace(config, server=server, ext_proc=replace(config.ext_proc, compat="llm-d"))
