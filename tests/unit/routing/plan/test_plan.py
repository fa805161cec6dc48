"""Plans: profiles out of plugins, and what is refused with which words."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from kvatlas.routing.errors import SchedulingError
from kvatlas.routing.plan.known_types import known_types, without_unknown_plugins
from kvatlas.routing.plan.plan import Plan, make_plan
from kvatlas.routing.plan.reference import NO_EFFECT
from kvatlas.routing.plan.reference_params import NO_EFFECT_PARAMS
from kvatlas.scorers.builtin import builtin_registry
from support.candidates import endpoint, no_chance
from support.plans import FLEET, REQUEST, approx, config, planned, profile, scores
from support.rating import decide


def problems(*plugins: str | dict[str, Any], **more: Any) -> list[str]:
    with pytest.raises(SchedulingError) as raised:
        planned(*plugins, **more)
    assert str(raised.value) == "; ".join(map(str, raised.value.problems))
    return [str(problem) for problem in raised.value.problems]


def test_without_plugins_the_weights_make_the_profile() -> None:
    plan = planned(weights={"queue": 5})

    assert [(name, weight) for name, _, weight in plan.profile.scorers] == [
        ("queue-scorer", 5),
        ("kv-cache-utilization-scorer", 2),
        ("gpu-prefix-cache-scorer", 1),
        ("cpu-prefix-cache-scorer", 1),
    ]


def test_profile_has_what_it_refers_to_in_its_order_with_its_weights() -> None:
    plan = planned(
        {"type": "active-request-scorer", "name": "busy"},
        "token-load-scorer",
        "random-picker",
        **profile("token-load-scorer", ("busy", 2.5)),
    )

    assert scores(plan)[0] == [("token-load-scorer", 1, pytest.approx(1, abs=0.001)), ("busy", 2.5, 1.0)]


@pytest.mark.parametrize(
    ("plugins", "max_age_s"),
    [
        pytest.param((), 0, id="the_weights"),
        pytest.param(("latency-cost-scorer",), 0.25, id="latency"),
        pytest.param(
            ("prefix-cache-affinity-filter", "token-load-scorer", "random-picker"), math.inf, id="affinity"
        ),
        pytest.param(("latency-cost-scorer", "queue-scorer"), 0, id="one_of_two"),
        pytest.param(("latency-cost-scorer", "p2p-source-producer"), 0, id="queues_of_sources"),
        pytest.param(("latency-cost-scorer", "utilization-detector"), 0, id="a_filter"),
    ],
)
def test_profile_accepts_the_age_of_loads_that_all_its_plugins_accept(
    plugins: tuple[str, ...], max_age_s: float
) -> None:
    assert planned(*plugins).profile.max_load_age_s == max_age_s


def test_without_profile_every_plugin_that_decides_is_in_it() -> None:
    plan = planned(
        {"type": "label-selector-filter", "parameters": {"matchLabels": {"zone": "a"}}},
        "active-request-scorer",
        "approx-prefix-cache-producer",
        "openai-parser",
    )

    decision = decide(
        plan.profile, REQUEST, [endpoint("a", labels={"zone": "a"}), endpoint("b")], rng=no_chance
    )

    assert [name for name, _, _ in plan.profile.scorers] == ["active-request-scorer"]
    assert decision.picked == ("a",)
    assert decision.scored[1].dropped is not None


def test_plugin_of_two_kinds_is_both() -> None:
    labels = {"llm-d.ai/context-length-range": "0-10"}
    plan = planned({"type": "context-length-aware", "parameters": {"enableFiltering": True}})

    decision = decide(plan.profile, REQUEST, [endpoint("a", labels=labels), endpoint("b")], rng=no_chance)

    assert decision.scored[0].dropped is not None
    assert scores(plan, endpoint("b")) == [[("context-length-aware", 1, 0.5)]]


def plugins_of(plan: Plan) -> dict[tuple[str, str], object]:
    return {key: each.plugin for key, each in plan.built.items()}


STATEFUL = (
    "no-hit-lru-scorer",
    {"type": "latency-cost-scorer", "name": "cost", "parameters": {"fit": True}},
    "session-affinity-scorer",
    "prefix-cache-affinity-filter",
    "weighted-random-picker",
)


@pytest.mark.parametrize(
    ("plugins", "more", "anew"),
    [
        pytest.param(STATEFUL, {}, (), id="same"),
        pytest.param(STATEFUL, profile("no-hit-lru-scorer", ("cost", 9)), (), id="weights"),
        pytest.param(STATEFUL[::-1], {}, (), id="order"),
        pytest.param((*STATEFUL, "queue-scorer"), {}, ("queue-scorer",), id="one_more"),
        pytest.param(
            (*STATEFUL[2:], {"type": "latency-cost-scorer", "name": "cost", "parameters": {"fit": False}}),
            {},
            ("cost",),
            id="other_parameters",
        ),
        pytest.param(
            (*STATEFUL[2:], {"type": "queue-scorer", "name": "cost"}), {}, ("cost",), id="other_type"
        ),
    ],
)
def test_plugins_go_on_with_what_they_learned_where_their_parameters_are_the_same(
    plugins: tuple[str | dict[str, Any], ...], more: dict[str, Any], anew: tuple[str, ...]
) -> None:
    before = planned(*STATEFUL)

    after = make_plan(config(*plugins, **more), before=before)

    old, new = plugins_of(before), plugins_of(after)
    assert {key[1] for key, plugin in new.items() if old.get(key) is not plugin} == set(anew)


def test_picker_of_the_profile_is_used() -> None:
    plan = planned({"type": "max-score-picker", "parameters": {"maxNumOfEndpoints": 2}}, "queue-scorer")

    assert len(decide(plan.profile, REQUEST, FLEET, rng=no_chance).picked) == 2


def test_picker_of_no_endpoint_picks_one_as_in_the_reference() -> None:
    plan = planned({"type": "max-score-picker", "parameters": {"maxNumOfEndpoints": 0}}, "queue-scorer")

    assert len(decide(plan.profile, REQUEST, FLEET, rng=no_chance).picked) == 1


def test_plugins_of_the_reference_without_meaning_are_noted() -> None:
    plan = planned("queue-scorer", "outlen-bucket", "openai-parser")

    assert plan.notes == (
        "plugin outlen-bucket has no effect: kvatlas takes no classes of output lengths",
        "plugin openai-parser has no effect: requestHandler.parsers does not name it",
    )


def test_plugins_without_a_part_in_a_profile_are_noted() -> None:
    plan = planned(
        approx("p"), "openai-parser", "queue-scorer", **profile("p", "openai-parser", "queue-scorer")
    )

    why = "has no effect in a profile: it is neither a filter, a scorer nor a picker"
    assert [f"plugin {name} {why}" for name in ("p", "openai-parser")] == list(plan.notes[1:])
    assert [name for name, _, _ in plan.profile.scorers] == ["queue-scorer"]


def test_scorers_of_profiles_that_are_compared_by_cost_are_noted_with_their_place() -> None:
    sections = [
        {"name": "decode", "plugins": [{"pluginRef": "decode-filter"}, {"pluginRef": "queue-scorer"}]},
        {"name": "prefill", "plugins": [{"pluginRef": "random-picker"}, {"pluginRef": "prefill-filter"}]},
        {"name": "encode", "plugins": [{"pluginRef": "encode-filter"}, {"pluginRef": "queue-scorer"}]},
    ]

    plan = planned(
        "decode-filter",
        "prefill-filter",
        "encode-filter",
        "queue-scorer",
        "random-picker",
        "joint-cost-handler",
        schedulingProfiles=sections,
    )

    why = "has no effect: joint-cost-handler compares the endpoints that the filters keep by their costs"
    assert plan.notes == (
        f"schedulingProfiles[0].plugins[1]: queue-scorer {why}",
        f"schedulingProfiles[1].plugins[0]: random-picker {why}",
    )


def test_parameters_without_effect_are_noted() -> None:
    given = {"kvEventsConfig": {"tracing": True, "concurrency": 4}, "sessionManager": "s"}

    plan = planned(
        {"type": "precise-prefix-cache-producer", "name": "p", "parameters": given}, "queue-scorer"
    )

    assert [note.partition(" has no effect: ")[0] for note in plan.notes] == [
        "plugin p: kvEventsConfig.concurrency",
        "plugin p: kvEventsConfig.tracing",
        "plugin p: sessionManager",
    ]


def test_parameters_of_plugins_without_effect_are_checked() -> None:
    wrong = {"type": "concurrency-detector", "parameters": {"maxConcurency": 3}}

    (problem,) = problems("queue-scorer", wrong)

    assert problem.startswith(
        "plugins[1].parameters.maxConcurency: unknown key; did you mean 'maxConcurrency'?"
    )


def test_types_are_either_registered_or_without_meaning() -> None:
    registered = {plugin_type for kind in builtin_registry().kinds for plugin_type in kind}

    assert registered.isdisjoint(NO_EFFECT)
    assert NO_EFFECT.keys() >= NO_EFFECT_PARAMS.keys()
    assert known_types() >= registered | NO_EFFECT.keys()


@pytest.mark.parametrize(
    ("plugins", "more", "expected"),
    [
        pytest.param(
            ["queue-scorers"],
            {},
            ["plugins[0].type: found 'queue-scorers', which kvatlas does not have (--ignore-unknown-plugins"],
            id="unknown_type",
        ),
        pytest.param(
            [{"type": "load-aware-scorer", "parameters": {"treshold": 3, "threshold": 0}}],
            {},
            ["plugins[0].parameters.treshold: unknown key; did you mean 'threshold'? allowed: threshold"],
            id="parameters",
        ),
        pytest.param(
            [{"type": "prefix-cache-scorer", "parameters": {"tier": "ram"}}],
            {},
            ["plugins[0].parameters.tier: found 'ram', expected a configured tier; known: gpu, cpu, storage"],
            id="tier",
        ),
        pytest.param(
            [
                {"type": "prefix-cache-scorer", "parameters": {"prefixMatchInfoProducerName": "gpu"}},
                approx("gpus"),
            ],
            {},
            ["plugins[0].parameters.prefixMatchInfoProducerName: found 'gpu', expected the name of a prefix"],
            id="producer",
        ),
        pytest.param(
            ["max-score-picker", "random-picker"],
            {},
            ["plugins[1]: found 'random-picker', a second picker; keep one"],
            id="two_pickers",
        ),
        pytest.param(
            ["queue-scorer"],
            {"schedulingProfiles": [{"name": "decode"}, {"name": "prefill"}]},
            [
                "schedulingProfiles[1]: found 2 profiles and no profile handler to run them; add one to plugins"
            ],
            id="two_profiles",
        ),
        pytest.param(
            ["queue-scorer"],
            profile("queue-scorer", "queue-scorer"),
            ["schedulingProfiles[0]: scorer 'queue-scorer' is in the profile twice"],
            id="twice_in_the_profile",
        ),
        pytest.param(
            ["sun-scorer", "moon-scorer"],
            profile("moon-scorer"),
            ["plugins[0].type: found 'sun-scorer'", "plugins[1].type: found 'moon-scorer'"],
            id="every_unknown_plugin_once",
        ),
    ],
)
def test_each_problem_has_its_path_and_what_is_allowed(
    plugins: list[str | dict[str, Any]], more: dict[str, Any], expected: list[str]
) -> None:
    found = problems(*plugins, **more)

    assert len(found) >= len(expected)
    for problem, start in zip(found, expected, strict=False):
        assert problem.startswith(start)


def test_unknown_type_is_told_the_three_closest() -> None:
    (problem,) = problems("queue-scorers")

    closest = problem.partition("; closest: ")[2].split(", ")
    assert (closest[0], len(closest)) == ("queue-scorer", 3)


def test_unknown_plugins_are_left_out_with_what_refers_to_them() -> None:
    given = config("queue-scorer", {"type": "moon-scorer", "name": "slo"}, **profile("slo", "queue-scorer"))

    kept, left_out = without_unknown_plugins(given)

    assert left_out == ("slo",)
    assert [name for name, _, _ in make_plan(kept).profile.scorers] == ["queue-scorer"]


def test_plugins_with_state_are_new_in_each_plan() -> None:
    given = config("no-hit-lru-scorer")

    first, second = make_plan(given).profile.scorers[0][1], make_plan(given).profile.scorers[0][1]

    assert first is not second


def test_plugins_read_what_other_plugins_and_sections_describe() -> None:
    scorer = {
        "type": "endpoint-attribute-scorer",
        "parameters": {"attributeKey": "temp", "algorithm": {"type": "linear_lower_is_better"}},
    }
    near = {"type": "topology-affinity-scorer", "parameters": {"topologyProducerName": "places"}}
    places = {"type": "topology-extractor", "name": "places", "parameters": {"hostname": "host"}}
    scrape = {"metricsScrape": {"engines": {"vllm": {"attributes": {"temp": "gpu_temp"}}}}}

    plan = planned(scorer, near, places, **scrape)
    assert plan.notes == ()
    decision = decide(
        plan.profile,
        msgspec.structs.replace(REQUEST, peer_labels={"host": "h"}),
        [endpoint("a", labels={"host": "h"}, attributes={"temp": 3.0}), endpoint("b")],
        rng=no_chance,
    )
    assert [term.rating.score for term in decision.first.terms] == [1.0, 1.0]


def test_parameters_of_attributes_without_effect_are_noted() -> None:
    attribute = {
        "type": "endpoint-attribute-filter",
        "name": "cool",
        "parameters": {
            "attribute": "temp",
            "algorithm": {"type": "threshold", "threshold": {"operator": "LessThan", "value": 9}},
        },
    }
    near = {"type": "topology-affinity-filter", "parameters": {"topologyProducerName": "nobody"}}

    assert planned(attribute, near, "queue-scorer").notes == (
        "plugin cool: no series is configured for the attribute 'temp', so that it is unknown; configured: none",
        (
            "plugin topology-affinity-filter: no topology-extractor is named 'nobody'; "
            "the usual labels of Kubernetes are used"
        ),
    )
