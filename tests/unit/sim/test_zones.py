"""Zones of servers with roles, from the command line to the network between them."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from kvatlas.app.cli.main import app
from kvatlas.sim import hardware
from kvatlas.sim.live import SimulateOptions, server_configs
from kvatlas.sim.replay.command import ReplayOptions, make_cases
from kvatlas.sim.roles import ZONE_LABEL, parse_roles

ROLES = parse_roles("prefill=2,decode=3")
ZONES = ["zone-0", "zone-1", "zone-0", "zone-1", "zone-0"]


def test_servers_of_each_role_take_the_zones_in_turn() -> None:
    live = server_configs(SimulateOptions(roles=ROLES, zones=2))
    network = hardware.network(zone_gbit_per_s=25.0)
    (case, *_) = make_cases(ReplayOptions(trace="", roles=ROLES, zones=2, network=network))

    assert [each.zone for each in live] == ZONES
    assert [each[ZONE_LABEL] for each in case.fleet.labels] == ZONES
    assert case.fleet.network.zone_bytes_per_s == 25e9 / 8


def test_servers_have_no_zone_when_there_is_one() -> None:
    assert not any(each.zone for each in server_configs(SimulateOptions(roles=ROLES)))


@pytest.mark.parametrize("command", [["simulate"], ["replay", "trace.jsonl"]])
def test_zones_without_roles_are_refused(command: list[str]) -> None:
    result = CliRunner().invoke(app, [*command, "--zones", "2"])

    assert result.exit_code == 2
    assert "needs --roles" in result.output
