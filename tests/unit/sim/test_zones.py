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


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--zones", "2"], "--zones: needs --roles"),
        (["--link-gbit", "25"], "--link-gbit: needs --roles"),
        (["--roles", "prefill=1,decode=1", "--zone-gbit", "25"], "--zone-gbit: needs --zones"),
    ],
)
@pytest.mark.parametrize("command", [["simulate"], ["replay", "trace.jsonl"]])
def test_option_without_the_one_that_it_needs_is_refused(
    command: list[str], options: list[str], reason: str
) -> None:
    result = CliRunner().invoke(app, [*command, *options])

    assert result.exit_code == 2
    assert reason in result.output
