"""The section `replicas` of several replicas that meet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

Sections = dict[str, dict[str, Any]]
"""Name of a replica -> its section."""


def mesh(folder: Path, *names: str) -> Sections:
    """Return sections of replicas that meet on Unix sockets."""
    addresses = {name: f"ipc://{folder / name}.mesh" for name in names}
    listed = {"list": [*addresses.values()]}
    return {
        name: {"transport": "mesh", "name": name, "mesh": {"listen": address, "discover": listed}}
        for name, address in addresses.items()
    }


def on_server(address: str, *names: str) -> Sections:
    """Return sections of replicas that meet on one server."""
    return {name: {"transport": "valkey", "name": name, "valkey": {"address": address}} for name in names}


def on_cluster(addresses: list[str], *names: str) -> Sections:
    """Return sections of replicas that meet on a cluster."""
    return {name: {"transport": "valkey", "name": name, "valkey": {"cluster": addresses}} for name in names}
