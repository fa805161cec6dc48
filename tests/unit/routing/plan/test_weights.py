"""Other weights for the scorers of a configuration, in its short form and with plugins."""

from __future__ import annotations

import math

import pytest

from kvatlas.configs.errors import ConfigError
from kvatlas.configs.schema import KVAtlasConfig
from kvatlas.routing.plan.plan import make_plan
from kvatlas.routing.plan.weights import weights_of, with_weights
from support.plans import config, profile

SHORT = config(weights={"queue": 5, "cpuPrefixCache": 6})
LATENCY = config(policy="latency")
PLUGINS = config(
    "queue-scorer",
    {"type": "active-request-scorer", "name": "busy"},
    "decode-filter",
    **profile("decode-filter", ("busy", 3), "queue-scorer"),
)
NO_PROFILE = config(
    "queue-scorer", {"type": "approx-prefix-cache-producer"}, {"type": "load-aware-scorer", "name": "load"}
)


@pytest.mark.parametrize(
    ("start", "changed", "weights"),
    [
        pytest.param(
            SHORT,
            {"queue": 3, "gpuPrefixCache": 0.5},
            {"queue": 3, "kvCacheUtilization": 2, "gpuPrefixCache": 0.5, "cpuPrefixCache": 6},
            id="short_form",
        ),
        pytest.param(PLUGINS, {"busy": 0}, {"busy": 0, "queue-scorer": 1}, id="plugins"),
        pytest.param(NO_PROFILE, {"load": 2.5}, {"queue-scorer": 1, "load": 2.5}, id="no_profile"),
        pytest.param(PLUGINS, {}, {"busy": 3, "queue-scorer": 1}, id="none"),
    ],
)
def test_weights_named_are_changed_and_the_others_stay(
    start: KVAtlasConfig, changed: dict[str, object], weights: dict[str, float]
) -> None:
    plan = make_plan(start)

    after = make_plan(with_weights(start, plan, changed), before=plan)

    assert weights_of(after) == weights
    assert [name for name, _, _ in after.profile.scorers] == [name for name, _, _ in plan.profile.scorers]
    assert [each.plugin_ref for each in after.references] == [each.plugin_ref for each in plan.references]


@pytest.mark.parametrize(
    ("start", "weights", "problem"),
    [
        pytest.param(
            LATENCY,
            {"latency-cost-scorer": 2},
            "weights: policy 'latency' has no weights; change the policy first, or give plugins",
            id="policy",
        ),
        pytest.param(
            SHORT,
            {"queu": 1},
            "weights: queu: unknown key; did you mean 'queue'? allowed: queue, ",
            id="short_name",
        ),
        pytest.param(
            SHORT,
            {"queue": -1},
            "weights: queue: found -1, expected a number from 0 to 1000000000",
            id="negative",
        ),
        pytest.param(
            SHORT,
            {"queue": "2"},
            "weights: queue: found '2', expected a number from 0 to 1000000000",
            id="text",
        ),
        pytest.param(
            SHORT,
            {"queue": math.inf},
            "weights: queue: found infinity, expected a number from 0 to 1000000000",
            id="infinite",
        ),
        pytest.param(
            SHORT,
            {"queue": 1.7e308},
            "weights: queue: found 1.7e+308, expected a number from 0 to 1000000000",
            id="totals_would_overflow",
        ),
        pytest.param(
            SHORT,
            {"queue": math.nan},
            "weights: queue: found nan, expected a number from 0 to 1000000000",
            id="nan",
        ),
        pytest.param(
            SHORT,
            {"queue": None},
            "weights: queue: found nothing, expected a number from 0 to 1000000000",
            id="null",
        ),
        pytest.param(
            PLUGINS,
            {"bussy": 1},
            "weights: bussy: no scorer of that name; did you mean 'busy'? known: busy, queue-scorer",
            id="plugin_name",
        ),
        pytest.param(
            PLUGINS, {"decode-filter": 1}, 'weights: ["decode-filter"]: no scorer of that name', id="filter"
        ),
        pytest.param(
            PLUGINS,
            {"busy": "x"},
            "weights: busy: found 'x', expected a number from 0 to 1000000000",
            id="plugin_text",
        ),
        pytest.param(
            PLUGINS,
            {"busy": math.inf},
            "weights: busy: found infinity, expected a number from 0 to 1000000000",
            id="plugin_infinite",
        ),
        pytest.param(
            PLUGINS,
            {"busy": 1.7e308},
            "weights: busy: found 1.7e+308, expected a number from 0 to 1000000000",
            id="plugin_totals_would_overflow",
        ),
    ],
)
def test_impossible_weight_is_named(start: KVAtlasConfig, weights: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError) as raised:
        with_weights(start, make_plan(start), weights)

    assert str(raised.value).startswith(problem)
