"""Settings are read from a configuration, and set in it and in its file, so that both give the same settings."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from kvatlas.configs.schema import KVAtlasConfig, PluginConfig
from kvatlas.routing.plan.load import load_scheduled
from kvatlas.sim import hardware
from kvatlas.sim.errors import ReplayError
from kvatlas.sim.replay.comparison import Case
from kvatlas.sim.replay.fleet_spec import FleetSpec
from kvatlas.sim.replay.policies import Policy
from kvatlas.sim.tuning.settings import Settings, case_with, config_of, file_with, settings_of

HEAD = "apiVersion: kvatlas/v1\nkind: KVAtlasConfig\n"
SHORT = f"# mine\n{HEAD}weights: {{queue: 2, gpuPrefixCache: 3}}\n"
PLUGINS = f"""{HEAD}
plugins:
- {{type: queue-scorer}}
- {{type: prefix-cache-scorer, name: prefix, parameters: {{tier: gpu}}}}
- {{type: max-score-picker}}
schedulingProfiles:
- plugins:
  - {{pluginRef: queue-scorer, weight: 2}}
  - {{pluginRef: prefix}}
  - {{pluginRef: max-score-picker}}
"""
TIERED = f"""{HEAD}
plugins:
- {{type: tiered-prefix-cache-scorer, name: tiers, parameters: {{credits: {{cpu: 0.5}}}}}}
schedulingProfiles: [{{plugins: [{{pluginRef: tiers}}]}}]
"""
PRODUCER = f"""{HEAD}
plugins:
- type: precise-prefix-cache-producer
  parameters:
    indexerConfig: {{kvCacheBackendConfigs: [{{name: gpu, weight: 1.0}}, {{name: CPU_PINNED, weight: 0.7}}]}}
- {{type: prefix-cache-scorer, parameters: {{prefixMatchInfoProducerName: precise-prefix-cache-producer}}}}
schedulingProfiles: [{{plugins: [{{pluginRef: prefix-cache-scorer}}]}}]
"""
BARE_PRODUCER = f"""{HEAD}
plugins:
- {{type: precise-prefix-cache-scorer}}
schedulingProfiles: [{{plugins: [{{pluginRef: precise-prefix-cache-scorer}}]}}]
"""


def case_of(file: Path, *, cpu_gib: float = 10.0, **fleet: Any) -> Case:
    return Case(Policy("a", load_scheduled(file).config), FleetSpec(**fleet), cpu_gib)


@pytest.mark.parametrize(
    ("text", "before", "after"),
    [
        pytest.param(
            SHORT,
            Settings({"queue-scorer": 2, "kv-cache-utilization-scorer": 2, "gpu-prefix-cache-scorer": 3, "cpu-prefix-cache-scorer": 1}, {}, 10),
            Settings({"queue-scorer": 0.5, "kv-cache-utilization-scorer": 4, "gpu-prefix-cache-scorer": 3, "cpu-prefix-cache-scorer": 0}, {}, 10),
            id="weights",
        ),
        pytest.param(
            PLUGINS,
            Settings({"queue-scorer": 2, "prefix": 1}, {}, 10),
            Settings({"queue-scorer": 1.25, "prefix": 7}, {}, 10),
            id="plugins",
        ),
        pytest.param(
            TIERED,
            Settings({"tiers": 1}, {"tiers.cpu": 0.5, "tiers.storage": 0.4}, 10),
            Settings({"tiers": 2}, {"tiers.cpu": 0.95, "tiers.storage": 0.0}, 10),
            id="tier_credits",
        ),
        pytest.param(
            PRODUCER,
            Settings({"prefix-cache-scorer": 1}, {"precise-prefix-cache-producer.cpu": 0.7, "precise-prefix-cache-producer.storage": 0.0}, 10),
            Settings({"prefix-cache-scorer": 1}, {"precise-prefix-cache-producer.cpu": 0.2, "precise-prefix-cache-producer.storage": 0.1}, 10),
            id="producer_credits",
        ),
        pytest.param(
            BARE_PRODUCER,
            Settings({"precise-prefix-cache-scorer": 1}, {"precise-prefix-cache-scorer.cpu": 0.8, "precise-prefix-cache-scorer.storage": 0.4}, 10),
            Settings({"precise-prefix-cache-scorer": 1}, {"precise-prefix-cache-scorer.cpu": 0.05, "precise-prefix-cache-scorer.storage": 0.4}, 10),
            id="default_credits_of_the_reference",
        ),
    ],
)  # fmt: skip
def test_file_and_case_with_other_settings_have_these(
    tmp_path: Path, text: str, before: Settings, after: Settings
) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(text)
    case = case_of(file, has_storage=True)
    assert settings_of(case, max_cpu_gib=10.0) == before
    after = Settings({name: float(weight) for name, weight in after.weights.items()}, after.credits, 10.0)

    tuned, difference = file_with(file, case, after)

    file.write_text(tuned)
    assert settings_of(case_of(file, has_storage=True), max_cpu_gib=10.0) == after
    assert settings_of(case_with(case, after), max_cpu_gib=10.0) == after
    assert re.search(r"^\+.*\d$", difference, re.MULTILINE)
    assert file_with(file, case_of(file, has_storage=True), after)[1] == ""


def test_credits_of_tiers_that_the_engines_lack_are_no_settings(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(TIERED)

    assert settings_of(case_of(file), max_cpu_gib=0.0).credits == {}
    assert settings_of(case_of(file), max_cpu_gib=1.0).credits == {"tiers.cpu": 0.5}


@pytest.mark.parametrize(
    ("capacity", "follows"),
    [pytest.param("1000", True, id="bounded"), pytest.param("auto", False, id="auto")],
)
def test_capacity_of_the_cpu_tier_follows_its_size(tmp_path: Path, capacity: str, follows: bool) -> None:
    file = tmp_path / "a.yaml"
    tiers = f"[{{name: gpu, media: [GPU]}}, {{name: cpu, media: [cpu], lruCapacityPerServer: {capacity}}}]"
    file.write_text(f"{HEAD}tiers: {tiers}\n")
    case = case_of(file)
    same = settings_of(case, max_cpu_gib=20.0)
    larger = Settings(same.weights, same.credits, 20.0)

    changed = case_with(case, larger)

    n_blocks = hardware.blocks_in(20.0)
    assert (changed.fleet.cpu_blocks, changed.cpu_gib) == (n_blocks, 20.0)
    expected = n_blocks if follows else "auto"
    assert config_of(changed).tiers[1].lru_capacity_per_server == expected
    assert (f"lruCapacityPerServer: {n_blocks}" in file_with(file, case, larger)[0]) is follows
    assert f"lruCapacityPerServer: {capacity}" in file_with(file, case, same)[0]


def test_bound_of_a_configuration_without_tiers_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(SHORT)
    case = case_of(file)

    assert config_of(case_with(case, settings_of(case, max_cpu_gib=0.0))).tiers == config_of(case).tiers
    assert config_of(case_with(case, Settings({}, {}, 50.0))).tiers == config_of(case).tiers


def test_weights_without_a_place_are_refused() -> None:
    config = KVAtlasConfig(api_version="kvatlas/v1", plugins=(PluginConfig(type="queue-scorer"),))
    case = Case(Policy("a", config), FleetSpec(), 0.0)

    with pytest.raises(ReplayError, match="plugins without schedulingProfiles"):
        case_with(case, settings_of(case, max_cpu_gib=0.0))


def test_policy_without_weights_cannot_be_tuned() -> None:
    latency = KVAtlasConfig(api_version="kvatlas/v1", policy="latency")
    for policy in (Policy("random"), Policy("latency", latency)):
        with pytest.raises(ReplayError, match=f"policy '{policy.name}' has no weights to tune"):
            settings_of(Case(policy, FleetSpec(), 0.0), max_cpu_gib=0.0)
