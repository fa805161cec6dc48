"""Section for scraping, `metricsScrape`."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from .dcgm import DcgmConfig
from .paths import PathText
from .section import Port, Section
from .units import Duration


class EngineConfig(Section, frozen=True):
    """Series of one engine, each `name` or `name{label=value}`; empty: the engine has none; absent: the one that kvatlas knows."""

    waiting: str | None = None
    """Gauge of queued requests."""
    running: str | None = None
    """Gauge of requests being served."""
    kv_utilization: str | None = None
    """Gauge of the used part of the KV blocks, 0 to 1."""
    block_size: str | None = None
    """Gauge of the tokens per block."""
    num_blocks: str | None = None
    """Gauge of the GPU blocks of one rank."""
    cache_info: str | None = None
    """Series with block size and number of blocks in its labels."""
    block_size_label: str | None = None
    """Label of `cacheInfo` with the tokens per block."""
    num_blocks_label: str | None = None
    """Label of `cacheInfo` with the GPU blocks of all ranks."""
    lora_info: str | None = None
    """Series with the LoRA adapters in labels with vLLM's names, whose value is the time of its update."""
    attributes: dict[str, str] = {}
    """Attribute of endpoints -> any other gauge or counter, for `endpoint-attribute-scorer` and `endpoint-attribute-filter`."""
    lora_loaded: str | None = None
    """Series with a sample of 1 for each loaded LoRA adapter, in the labels `adapter_name` and `level` (gpu or cpu)."""


MAX_IDLE_INTERVAL_S = 1.0
"""Default limit of the time between two scrapes of an idle endpoint."""


class ScrapeTlsConfig(Section, frozen=True):
    """TLS of scraping."""

    verify: bool = True
    """Whether certificates are verified."""
    ca_file: PathText = ""
    """PEM file with the authorities of certificates; empty: those of the system."""
    cert_file: PathText = ""
    """PEM file with the certificate that kvatlas shows, and its chain; empty for none."""
    key_file: PathText = ""
    """PEM file with its private key."""


class MetricsScrapeConfig(Section, frozen=True):
    """Scraping of the endpoints' /metrics."""

    interval: Duration = Duration(0.05)
    """Time between two scrapes of a busy endpoint."""
    idle_interval: Duration | None = None
    """Longest time between two scrapes of an idle endpoint; absent: half of `staleAfter`, at most 1 s, at least `interval`."""
    stale_after: Duration = Duration(2.0)
    """Age above which a load is stale."""
    timeout: Duration = Duration(1.0)
    """Timeout of one scrape."""
    engine: Annotated[str, Meta(min_length=1)] = "auto"
    """Engine of endpoints without the label `llm-d.ai/engine-type`; auto: detected by the series in the response."""
    engines: dict[str, EngineConfig] = {}
    """Engine name -> its series, for series that differ and for further engines."""
    scheme: Literal["http", "https"] = "http"
    """Scheme of the URLs of endpoints that give none."""
    port: Port | None = None
    """Port of these URLs; absent: the one that serves requests."""
    page: str = "/metrics"
    """Path of these URLs."""
    tls: ScrapeTlsConfig = ScrapeTlsConfig()
    """TLS of https URLs."""
    dcgm: DcgmConfig = DcgmConfig()
    """Scraping of GPUs, for the attribute `GPUUtilization`."""

    def url_of(self, host: str, port: int) -> str:
        """Return the URL of an endpoint that gives none.

        Args:
            host: that serves requests, IPv6 in brackets.
            port: that serves requests.
        """
        return self.url_at(f"{host}:{self.port or port}")

    def url_at(self, place: str) -> str:
        """Return the URL of metrics at `HOST:PORT`."""
        return f"{self.scheme}://{place}/{self.page.lstrip('/')}"

    @property
    def place(self) -> tuple[str, int | None, str]:
        """Return what decides on these URLs."""
        return self.scheme, self.port, self.page

    @property
    def idle_interval_s(self) -> float:
        """Return the longest time between two scrapes of an idle endpoint, in seconds."""
        return max(self.interval, self.idle_interval or min(MAX_IDLE_INTERVAL_S, self.stale_after / 2))
