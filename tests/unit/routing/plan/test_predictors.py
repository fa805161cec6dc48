"""Plans with predictors and admitters, which act without being listed in a profile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from kvatlas.routing.errors import SchedulingError
from kvatlas.routing.plan.load import load_scheduled
from kvatlas.routing.plan.plan import make_plan
from kvatlas.scorers.core.candidates import Candidates
from kvatlas.scorers.core.decision import Decision
from kvatlas.scorers.core.model import InFlightLoad, RequestView
from kvatlas.scorers.latency.predictor import LatencyPredictor
from support.candidates import endpoint, load
from support.plans import planned, profile
from support.rating import decide
from support.stages import ALWAYS, server, staged

REFERENCE = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins:\n"


def test_predictor_is_kept_with_what_it_learned_while_its_parameters_stay() -> None:
    producer = {"type": "predicted-latency-producer", "name": "p", "parameters": {"streamingMode": True}}
    first = planned(producer, "latency-scorer", **profile("p", "latency-scorer"))
    second = make_plan(first.config, before=first)

    assert first.profile.predictor is not None
    assert first.profile.predictor[0] == "p"
    assert second.profile.predictor == first.profile.predictor
    assert [name for name, _, _ in first.profile.scorers] == ["latency-scorer"]


def test_admitter_acts_without_being_listed() -> None:
    plan = planned("probabilistic-admitter", "queue-scorer", **profile("queue-scorer"))
    full = endpoint(of=load(waiting=99))

    shed = decide(plan.profile, RequestView("m", 0.0, priority=-1), [full])
    kept = decide(plan.profile, RequestView("m", 0.0), [full])

    assert shed.denied is not None
    assert (shed.denied.by, kept.denied) == ("probabilistic-admitter", None)


def test_prompts_that_a_prefill_server_computes_are_followed_from_the_pick_to_the_first_token() -> None:
    plan = staged(
        "predicted-latency-producer", ALWAYS, names=("decode", "prefill"), deciders={"prefill": ALWAYS}
    )
    assert plan.profile.predictor is not None
    predictor = plan.profile.predictor[1]
    assert isinstance(predictor, LatencyPredictor)
    model, prefill = predictor.model, server("p", "prefill")

    def sent(now: float, n_ahead: int) -> tuple[Decision, float]:
        """Return the decision on a request, and the milliseconds that are expected of it at the prefill server."""
        busy = replace(prefill, in_flight=InFlightLoad(n_ahead, 20_000 * n_ahead))
        fleet, request = [server("d", "decode"), busy], RequestView("m", now, n_tokens=20_000)
        expected_ms = float(model.expect(request, Candidates.of(fleet)).ttft_ms[1])
        decision = replace(decide(plan.profile, request, fleet), at=now)
        assert decision.computing.best.name == "p"
        assert plan.profile.picked(request, decision) == ()
        return decision, expected_ms

    first, alone_ms = sent(0.0, 0)
    second, expected_ms = sent(1.0, 1)
    assert expected_ms == pytest.approx(2.0 * alone_ms - 1000.0, abs=100.0), "a second's work is done"
    plan.profile.answered(second, ttft_s=expected_ms / 1000.0)

    assert model.ttft_error == pytest.approx(0.0, abs=1e-9)
    plan.profile.ended(second, tpot_s=0.02)
    plan.profile.ended(first, tpot_s=None)
    assert len(model.accounts) == 0


@pytest.mark.parametrize(
    ("plugins", "message"),
    [
        pytest.param(
            ["latency-scorer"],
            "plugins[0].parameters.latencyPredictionInfoProducerName: needs predictions; add a predicted-latency-producer",
            id="no_predictor",
        ),
        pytest.param(
            ["predicted-latency-producer", {"type": "predicted-latency-producer", "name": "other"}],
            "plugins[1].type: found a second predictor; keep one",
            id="two_predictors",
        ),
    ],
)
def test_plan_says_which_predictor_is_missing_or_too_many(
    plugins: list[str | dict[str, Any]], message: str
) -> None:
    with pytest.raises(SchedulingError) as error:
        planned(*plugins)

    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("plugins", "has_predictor"),
    [
        pytest.param("- type: latency-scorer\n", True, id="scorer"),
        pytest.param("- type: slo-headroom-tier-filter\n- type: queue-scorer\n", True, id="filter"),
        pytest.param("- type: latency-slo-admitter\n- type: queue-scorer\n", True, id="admitter"),
        pytest.param(
            "- type: prefix-cache-affinity-filter\n  parameters: {ttftSource: latencyPredictor}\n",
            True,
            id="affinity",
        ),
        pytest.param("- type: prefix-cache-affinity-filter\n", False, id="affinity_by_throughput"),
        pytest.param("- type: lmetric-scorer\n", False, id="nothing_predicted"),
    ],
)
def test_file_of_the_reference_gets_the_predictor_that_its_plugins_read(
    tmp_path: Path, plugins: str, *, has_predictor: bool
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(REFERENCE + plugins)

    plan = make_plan(load_scheduled(file).config)

    assert (plan.profile.predictor is not None) is has_predictor
    assert plan.profile.predictor is None or isinstance(plan.profile.predictor[1], LatencyPredictor)


def test_negative_weight_turns_a_preference_around() -> None:
    plan = planned("queue-scorer", **profile(("queue-scorer", -1.0)))
    fleet = [endpoint("idle", of=load(waiting=0)), endpoint("busy", of=load(waiting=9))]

    decision = decide(plan.profile, RequestView("m", 0.0), fleet)

    assert (decision.picked, decision.totals.tolist()) == (("busy",), [-1.0, 0.0])
