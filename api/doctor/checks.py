"""Every check, in the order of the report."""

from __future__ import annotations

from . import cluster, events, load, models, replicas, requests, setup
from .check import Check
from .stages import servers

CHECKS: tuple[Check, ...] = (
    *setup.CHECKS,
    *models.CHECKS,
    *cluster.CHECKS,
    *replicas.CHECKS,
    *events.CHECKS,
    *load.CHECKS,
    *requests.CHECKS,
    *servers.CHECKS,
)
