"""Who is turned away when the fleet is saturated; the ids are the numbers of the protocol cases."""

from __future__ import annotations

import pytest

from kvatlas.configs.schema import AdmissionConfig
from kvatlas.routing.admission import Admission
from kvatlas.routing.refusals import SHED
from kvatlas.scorers.core.model import Load

NOW = 100.0


def test_priority_is_the_clusters_when_the_configuration_has_none() -> None:
    discovered = {"batch": -5, "chat": 7}
    admission = Admission(AdmissionConfig(objectives={"batch": -1}), discovered=discovered)
    assert [admission.priority(name) for name in ("batch", "chat", "other", "")] == [-1, 7, 0, 0]
    discovered["other"] = 3
    assert admission.priority("other") == 3


ADMISSION = Admission(AdmissionConfig(objectives={"batch": -1, "chat": 3}), idle_interval_s=1.0)


def load(waiting: int = 0, kv: float = 0.0, *, age_s: float = 0.0, running: int = 0) -> Load:
    return Load(waiting=waiting, running=running, kv_utilization=kv, updated_at=NOW - age_s)


@pytest.mark.parametrize(
    ("loads", "saturation"),
    [
        pytest.param([load()], 0.0, id="idle"),
        pytest.param([load(waiting=5)], 1.0, id="queue_at_its_threshold"),
        pytest.param([load(kv=0.8)], 1.0, id="cache_at_its_threshold"),
        pytest.param([load(waiting=10, kv=0.4)], 2.0, id="the_larger_counts_and_may_pass_1"),
        pytest.param([load(waiting=5), load()], 0.5, id="mean_over_endpoints"),
        pytest.param([load(running=1, age_s=0.19)], 0.0, id="not_too_old"),
        pytest.param([load(running=1, age_s=0.21)], 1.0, id="too_old"),
        pytest.param([load(age_s=1.19)], 0.0, id="idle_and_so_scraped_seldom"),
        pytest.param([load(age_s=1.21)], 1.0, id="idle_and_too_old"),
        pytest.param([None, load()], 0.5, id="unknown_load"),
        pytest.param([], 1.0, id="no_endpoint"),
    ],
)
def test_saturation_is_the_mean_of_the_endpoints(loads: list[Load | None], saturation: float) -> None:
    assert ADMISSION.saturation(loads, now=NOW) == pytest.approx(saturation)


@pytest.mark.parametrize(
    ("objective", "priority"),
    [
        pytest.param("batch", -1, id="R17_configured"),
        pytest.param("chat", 3, id="R17_above_zero"),
        pytest.param("other", 0, id="R17_unknown"),
        pytest.param("", 0, id="R17_absent"),
    ],
)
def test_objective_has_a_priority(objective: str, priority: int) -> None:
    assert ADMISSION.priority(objective) == priority


@pytest.mark.parametrize(
    ("priority", "waiting", "is_shed"),
    [
        pytest.param(-1, 5, True, id="E1_negative_and_saturated"),
        pytest.param(-1, 4, False, id="E4_negative_below_saturation"),
        pytest.param(0, 500, False, id="E4_default_priority_is_never_shed"),
        pytest.param(1, 500, False, id="E4_positive"),
    ],
)
def test_only_negative_priority_is_shed(priority: int, waiting: int, is_shed: bool) -> None:
    assert ADMISSION.refusal(priority, [load(waiting)], now=NOW) == (SHED if is_shed else None)


def test_threshold_of_zero_is_always_reached() -> None:
    admission = Admission(AdmissionConfig(queue_depth_threshold=0))

    assert admission.refusal(-1, [load()], now=NOW) is SHED
