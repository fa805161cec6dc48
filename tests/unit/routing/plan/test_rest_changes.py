"""What REST changed, applied to a configuration."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kvatlas.configs.errors import ConfigError
from kvatlas.configs.plain import plain
from kvatlas.configs.schema import KVAtlasConfig, PluginConfig, SnapshotConfig, WeightsConfig
from kvatlas.configs.section import PolicyName
from kvatlas.fleet.errors import ConfigRefusedError
from kvatlas.routing.plan.capacities import capacities_of
from kvatlas.routing.plan.plan import make_plan
from kvatlas.routing.plan.rest_changes import digest, ended_by_file, in_place, with_changes
from kvatlas.scorers.core.candidates import Candidates
from kvatlas.scorers.core.model import RequestView
from support.candidates import endpoint
from support.fleets import make_config
from support.stages import ALWAYS, staged

FILE = KVAtlasConfig(api_version="kvatlas/v1", weights=WeightsConfig(queue=4))


def test_changes_take_the_place_of_all_earlier_ones() -> None:
    first = with_changes(FILE, FILE, {"weight/queue": 5, "weight/gpuPrefixCache": 3, "shadow": "latency"})
    assert (first.weights.queue, first.weights.gpu_prefix_cache, first.shadow.policy) == (5, 3, "latency")
    second = with_changes(first, FILE, {"weight/gpuPrefixCache": 2, "shadow": None})
    assert (second.weights.queue, second.weights.gpu_prefix_cache, second.shadow.policy) == (4, 2, None)
    assert with_changes(second, FILE, {}) == FILE


def test_weights_wait_while_another_policy_is_in_force() -> None:
    latency = with_changes(FILE, FILE, {"policy": "latency", "weight/queue": 5})
    assert (latency.policy, latency.weights.queue) == ("latency", 4)


@pytest.mark.parametrize(
    "values",
    [
        {"policy": "another"},
        {"policy": ["latency"]},
        {"policy": None},
        {"shadow": 5},
        {"weight/queue": "x"},
        {"weight/queue": -1},
        {"weight/none": 1},
        {"capacity/cpu": "x"},
        {"capacity/cpu": 0},
        {"capacity/cpu": 10**30},
        {"capacity/none": 1},
    ],
)
def test_impossible_values_of_a_sibling_are_refused(values: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        with_changes(FILE, FILE, values)


@pytest.mark.parametrize("policy", ["latency", "weights"])
def test_policy_is_refused_in_place_of_plugins_that_pick_servers_for_stages(policy: PolicyName) -> None:
    stages = staged(ALWAYS, deciders={"prefill": ALWAYS}).config

    with pytest.raises(ConfigRefusedError, match="pick servers for encode and prefill"):
        with_changes(stages, stages, {"policy": policy})


@pytest.mark.parametrize(
    "sections",
    [
        pytest.param({"plugins": [{"type": "queue-scorer"}]}, id="plugins_of_one_stage"),
        pytest.param({"disaggregation": {"uncachedTokens": 1}}, id="stages_that_remain"),
    ],
)
def test_policy_takes_the_place_of_what_it_can_do(sections: dict[str, Any]) -> None:
    config = make_config(**sections)

    found = with_changes(config, config, {"policy": "latency"})

    assert (found.policy, found.plugins, found.disaggregation) == ("latency", (), config.disaggregation)


DECODES = {"type": "decode-filter", "name": "mine"}


@pytest.mark.parametrize(
    "sections",
    [
        pytest.param(
            {
                "plugins": [DECODES, {"type": "queue-scorer"}],
                "schedulingProfiles": [{"plugins": [{"pluginRef": "mine"}, {"pluginRef": "queue-scorer"}]}],
            },
            id="in_a_profile",
        ),
        pytest.param({"plugins": [DECODES, {"type": "queue-scorer"}]}, id="without_profiles"),
    ],
)
def test_latency_in_place_of_plugins_sends_no_whole_request_to_a_prefill_server(
    sections: dict[str, Any],
) -> None:
    config = make_config(**sections)
    found = with_changes(config, config, {"policy": "latency"})
    roles = ("prefill", "decode", "prefill")
    view = RequestView(model="m", now=0.0, n_tokens=100)
    endpoints = [endpoint(str(n), labels={"llm-d.ai/role": role}) for n, role in enumerate(roles)]

    for again in (found, with_changes(found, config, {"policy": "latency"}), in_place(found, "latency")):
        decision = make_plan(again).profile.decide(view, Candidates.of(endpoints), rng=lambda: 0.5)
        assert list(decision.kept_names) == ["1"]

    with pytest.raises(ConfigRefusedError, match="with mine would send requests to servers that are dropped"):
        with_changes(config, config, {"policy": "weights"})


FILTERS = [
    {"type": "session-affinity-filter", "name": "sticky"},
    {"type": "topology-affinity-filter", "parameters": {"topologyProducerName": "places"}},
    {"type": "by-label-selector", "name": "b", "parameters": {"matchLabels": {"tier": "gold"}}},
    {"type": "by-label-selector", "name": "a", "parameters": {"matchLabels": {"zone": "x"}}},
    {"type": "topology-extractor", "name": "places"},
    {"type": "context-length-aware", "parameters": {"label": "range"}},
    {"type": "queue-scorer"},
    {"type": "inflight-load-producer"},
]


def test_latency_keeps_the_filters_of_a_profile_in_their_order() -> None:
    order = ("a", "topology-affinity-filter", "context-length-aware", "b")
    references = [{"pluginRef": name} for name in ("queue-scorer", *order)]
    config = make_config(plugins=FILTERS, schedulingProfiles=[{"plugins": references}])
    found = with_changes(config, config, {"policy": "latency"})
    view = RequestView(model="m", now=0.0, n_tokens=100)
    labels = ({"zone": "x"}, {"zone": "x", "tier": "gold"}, {"tier": "gold"})
    endpoints = [endpoint(str(n), labels=each) for n, each in enumerate(labels)]

    for again in (found, with_changes(found, config, {"policy": "latency"}), in_place(found, "latency")):
        plan = make_plan(again)
        decision = plan.profile.decide(view, Candidates.of(endpoints), rng=lambda: 0.5)
        assert decision.filters == order
        assert [(each.name, each.weight) for each in decision.scorers if each.weight] == [
            ("fleet-cost-scorer", 1.0)
        ]
        assert list(decision.kept_names) == ["1"]

    with pytest.raises(ConfigRefusedError, match="with a, topology-affinity-filter, context-length-aware, b"):
        with_changes(config, config, {"policy": "weights"})


def test_filters_that_latency_kept_are_shown_as_a_file_writes_them() -> None:
    profiles = [{"plugins": [{"pluginRef": "queue-scorer"}, {"pluginRef": "a"}]}]
    config = make_config(plugins=FILTERS, schedulingProfiles=profiles)
    found = make_plan(with_changes(config, config, {"policy": "latency"})).config

    shown = plain(found)

    file = make_config(**{key: shown[key] for key in ("plugins", "schedulingProfiles")})
    view = RequestView(model="m", now=0.0, n_tokens=100)
    decision = make_plan(file).profile.decide(view, Candidates.of([endpoint("1")]), rng=lambda: 0.5)
    assert decision.filters == ("a",)
    assert [each.type for each in decision.scorers] == ["fleet-cost-scorer"]
    assert "policy" not in shown


def test_decode_filter_that_no_profile_has_is_not_kept() -> None:
    profiles = [{"plugins": [{"pluginRef": "queue-scorer"}]}]
    config = make_config(plugins=[DECODES, {"type": "queue-scorer"}], schedulingProfiles=profiles)

    assert with_changes(config, config, {"policy": "latency"}).plugins == ()
    assert with_changes(config, config, {"policy": "weights"}).plugins == ()


def test_loaded_file_ends_what_it_has_values_for() -> None:
    assert ended_by_file(["policy", "instance/a/b/0", "weight/queue", "capacity/cpu", "shadow"]) == [
        "policy",
        "weight/queue",
        "capacity/cpu",
        "shadow",
    ]


def test_capacities_change_beside_weights_and_end_with_them() -> None:
    found = with_changes(FILE, FILE, {"weight/queue": 5, "capacity/cpu": 41000, "capacity/gpu": "unlimited"})
    assert found.weights.queue == 5
    assert capacities_of(found) == {"gpu": "unlimited", "cpu": 41000, "storage": "auto"}
    assert digest(found) != digest(with_changes(found, FILE, {"weight/queue": 5}))
    assert with_changes(found, FILE, {}) == FILE


def test_capacity_that_a_plugin_gives_is_not_changed_beside_it() -> None:
    plugins = (
        PluginConfig(
            "approx-prefix-cache-producer", parameters={"lruCapacityPerServer": 500, "autoTune": False}
        ),
        PluginConfig("prefix-cache-scorer"),
    )
    file = msgspec.structs.replace(FILE, plugins=plugins, weights=WeightsConfig())
    with pytest.raises(ConfigError, match="gpu: plugins of the configuration give its capacity"):
        with_changes(file, file, {"capacity/gpu": 7})


def test_digest_is_equal_where_decisions_are() -> None:
    own = KVAtlasConfig(
        api_version="kvatlas/v1", weights=WeightsConfig(queue=4), snapshot=SnapshotConfig(file="x")
    )
    assert digest(own) == digest(FILE)
    assert digest(with_changes(FILE, FILE, {"weight/queue": 5})) != digest(FILE)
