"""Attributes of endpoints: any series of a page, read into columns of the candidates."""

from __future__ import annotations

from collections.abc import AsyncIterator

import numpy as np
import pytest

from kvatlas.configs.address import HostPort
from kvatlas.configs.endpoints import EndpointAddresses
from kvatlas.configs.engines import EngineCatalog
from kvatlas.configs.scraping import EngineConfig, MetricsScrapeConfig
from kvatlas.fleet.fleet import Fleet
from kvatlas.fleet.scrape.loads import LoadTable
from kvatlas.fleet.scrape.report import ReportReader
from kvatlas.fleet.settings import fleet_settings
from kvatlas.scorers.core.model import Load
from support.fleets import make_config, make_fleet

NAN = pytest.approx(float("nan"), nan_ok=True)


def reader(**attributes: str) -> ReportReader:
    vllm = EngineConfig(attributes=attributes)
    other = EngineConfig(waiting="other:waiting", attributes={"other": "other:power"})
    return ReportReader(EngineCatalog(MetricsScrapeConfig(engines={"vllm": vllm, "other": other})).of({}))


def page(*lines: str) -> bytes:
    load = ("vllm:num_requests_waiting 1", "vllm:num_requests_running 2", "vllm:kv_cache_usage_perc 0.5")
    return "\n".join((*load, *lines, "")).encode()


@pytest.mark.parametrize(
    ("selector", "lines", "value"),
    [
        pytest.param("gpu_temp", ["gpu_temp -30.5"], -30.5, id="gauge"),
        pytest.param("power{kind=total}", ['power{kind="idle"} 9', 'power{kind="total"} 7'], 7.0, id="label"),
        pytest.param("power", ['power{kind="idle"} 9', 'power{kind="total"} 7'], 9.0, id="first_line"),
        pytest.param("gpu_temp", ["gpu_temp_max 3"], NAN, id="other_name"),
        pytest.param("gpu_temp", ["gpu_temp NaN"], NAN, id="not_a_number"),
        pytest.param("gpu_temp", ["gpu_temp +Inf"], NAN, id="infinite"),
    ],
)
def test_attribute_is_the_first_line_that_matches(selector: str, lines: list[str], value: float) -> None:
    found = reader(temp=selector).read(page(*lines), now=1.0).load.attributes

    assert dict(found or {}) == {"temp": value, "other": NAN}


def test_attribute_that_vanishes_is_unknown() -> None:
    one = reader(temp="gpu_temp")
    seen = [one.read(body, now=1.0).load.attributes or {} for body in (page("gpu_temp 30"), page())]

    assert list(map(dict, seen)) == [{"temp": 30.0, "other": NAN}, {"temp": NAN, "other": NAN}]
    assert "gpu_temp" in one.names


def test_without_attributes_none_are_looked_for() -> None:
    engines = EngineCatalog(MetricsScrapeConfig()).of({})

    assert ReportReader(engines).read(page("gpu_temp 3"), now=1.0).load.attributes is None


@pytest.fixture
def loads() -> LoadTable:
    return LoadTable(stale_after_s=2.0)


@pytest.fixture
async def fleet(loads: LoadTable) -> AsyncIterator[Fleet]:
    config = make_config(metricsScrape={"engines": {"vllm": {"attributes": {"temp": "gpu_temp", "w": "w"}}}})
    async with make_fleet(config, loads=loads) as fleet:
        for number in range(5):
            addresses = EndpointAddresses(HostPort(f"10.0.0.{number}", 8000), None, ())
            fleet.add(f"e{number}", addresses, {})
        yield fleet


def put(loads: LoadTable, name: str, at: float, **attributes: float) -> None:
    loads.put(name, Load(0, 0, 0.0, at, attributes=attributes))


async def test_columns_have_the_attributes_of_the_candidates(fleet: Fleet, loads: LoadTable) -> None:
    put(loads, "e1", 1.0, temp=30.0, w=float("nan"))
    put(loads, "e3", 1.0, temp=50.0, w=7.0)
    fleet.forget("e0")

    table = fleet.candidates(None, now=1.0, subset=frozenset({"10.0.0.3", "10.0.0.1"}))
    put(loads, "e3", 2.0, temp=60.0, w=7.0)  # a decision's table does not change

    assert table.attribute("temp").tolist() == [30.0, 50.0]
    assert [each.attributes for each in table] == [{"temp": 30.0}, {"temp": 50.0, "w": 7.0}]
    assert table.take(np.array([1])).attribute("w").tolist() == [7.0]
    assert np.isnan(table.attribute("nobody")).all()


async def test_attributes_of_a_stale_load_are_unknown(fleet: Fleet, loads: LoadTable) -> None:
    put(loads, "e0", 1.0, temp=30.0, w=1.0)
    put(loads, "e1", 3.0, temp=50.0, w=2.0)

    table = fleet.candidates(None, now=3.5)

    assert table.attribute("temp").tolist() == [NAN, 50.0, NAN, NAN, NAN]
    assert [each.load is None for each in table] == [True, False, True, True, True]


async def test_another_configuration_keeps_what_it_names_too(fleet: Fleet, loads: LoadTable) -> None:
    put(loads, "e4", 1.0, temp=30.0, w=1.0)
    again = make_config(metricsScrape={"engines": {"vllm": {"attributes": {"new": "new", "w": "w"}}}})

    fleet.configure(fleet_settings(again))
    fleet.add("e5", EndpointAddresses(HostPort("10.0.0.9", 8000), None, ()), {})

    table = fleet.candidates(None, now=1.0)
    assert (table[4].attributes, table[5].attributes) == ({"w": 1.0}, {})
    fleet.configure(fleet_settings(make_config()))
    assert fleet.candidates(None, now=1.0).attributes is None
