"""Section for the metrics of GPUs, `metricsScrape.dcgm`."""

from __future__ import annotations

from typing import Literal

from .section import Port, Section
from .units import Duration

GPU_UTILIZATION = "GPUUtilization"
"""Attribute of endpoints that comes from it. Source: the reference's dcgm-extractor."""


class DcgmConfig(Section, frozen=True):
    """Scraping of NVIDIA's DCGM exporter, beside or on the node of each endpoint, for the attribute `GPUUtilization`."""

    enabled: bool = False
    """Whether it is scraped."""
    scheme: Literal["http", "https"] = "http"
    """Scheme of the URL."""
    port: Port = 9400
    """Port of the exporter."""
    page: str = "/metrics"
    """Path of the URL."""
    use_node_address: bool = False
    """Whether the exporter listens on the node (a DaemonSet) instead of the endpoint's own address (a sidecar)."""
    interval: Duration = Duration(1.0)
    """Time between two scrapes of an exporter."""
    verify: bool = False
    """Whether the certificate is verified with https."""
