"""Roles of endpoints that change while `kvatlas serve` runs, in a file and in the labels of pods."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvatlas.scorers.filters.roles import ROLE_LABEL
from support.api_server import ApiServerDouble
from support.cluster import PODS, POOLS, access, pod, pool
from support.gateway import Gateway, asking
from support.serve import serving
from support.waiting import until

pytestmark = pytest.mark.slow

APART = {"disaggregation": {"uncachedTokens": 16}}
NUMBERS = {"a": 1, "b": 2}
PLACES = {name: f"127.0.0.{number}:9" for name, number in NUMBERS.items()}
ROLES = {"a": "decode", "b": "prefill"}
Relabel = Callable[[str, str], None]


async def stages_follow_the_labels(gate: Gateway, relabel: Relabel) -> None:
    """Swap the roles of two endpoints, then give one of them both, without a moment when a stage has none."""

    async def until_placed(decode: str, *prefill: str) -> None:
        async def is_placed() -> bool:
            request = await gate.request(64)
            await request.end()
            (decision,) = (await gate.served.get("/v1/decisions?limit=1"))["decisions"]
            names = [name.removesuffix("-rank-0") for name in decision["stages"].get("prefill", [])]
            return (request.address, names) == (PLACES[decode], [*prefill])

        await until(is_placed, what=f"decode on {decode}, prefill on {prefill}")

    await until_placed("a", "b")
    relabel("b", "prefill-decode")
    relabel("a", "prefill")
    relabel("b", "decode")
    await until_placed("b", "a")
    relabel("a", "prefill-decode")
    relabel("b", "encode")
    await until_placed("a")


async def test_roles_change_when_the_file_of_endpoints_does(tmp_path: Path) -> None:
    file, roles = tmp_path / "servers.yaml", dict(ROLES)

    def write() -> None:
        servers: list[dict[str, Any]] = [
            {"name": name, "address": PLACES[name], "events": "", "metrics": "", "labels": {ROLE_LABEL: role}}
            for name, role in roles.items()
        ]
        written = tmp_path / "new.yaml"
        written.write_bytes(msgspec.yaml.encode(servers))
        written.replace(file)

    def relabel(name: str, role: str) -> None:
        roles[name] = role
        write()

    write()
    async with (
        serving({"endpoints": {"file": file.name}, **APART}, tmp_path) as served,
        asking(served) as gate,
    ):
        await stages_follow_the_labels(gate, relabel)


async def test_roles_change_when_the_labels_of_pods_do(tmp_path: Path) -> None:
    double = ApiServerDouble()
    await double.start()

    def relabel(name: str, role: str) -> None:
        body = pod(NUMBERS[name])
        body["metadata"]["labels"][ROLE_LABEL] = role
        double.put(PODS, name, body)

    try:
        double.put(POOLS, "mine", pool())
        for name, role in ROLES.items():
            relabel(name, role)
        async with (
            serving(access(double, tmp_path) | APART, tmp_path) as served,
            asking(served) as gate,
        ):
            await stages_follow_the_labels(gate, relabel)
    finally:
        await double.stop()
