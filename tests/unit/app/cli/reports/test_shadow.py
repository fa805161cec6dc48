from __future__ import annotations

import io
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from rich.console import Console

from kvatlas.api.rest.shadow import NO_SHADOW
from kvatlas.api.rest.shadow_models import MeanOut, ShadowOut, ShareOut
from kvatlas.app.cli.reports.shadow import print_shadow
from kvatlas.configs.observers import ShadowConfig
from kvatlas.fleet.families import StateCollector
from kvatlas.routing.observers.shadow.metrics import shadow_families
from kvatlas.routing.observers.shadow.shadow import Shadow
from support.fleets import make_config

FULL = ShadowOut(
    file="new.yaml",
    refusal="line 3, weights.queue: found -1",
    seconds=60.0,
    requests={"agreed": 90, "disagreed": 10, "refused": 1, "not_chosen": 0, "over_budget": 7},
    disagreement=ShareOut(share=0.1, low=0.055, high=0.174),
    prompt_tokens=100_000,
    live_tokens={"gpu": 40_000},
    shadow_tokens={"gpu": 42_000, "cpu": 1000},
    cached_gain_tokens=MeanOut(mean=30.0, margin=4.0, requests=100),
    ttft_gain_seconds=MeanOut(mean=-0.002, margin=None, requests=1),
    terms={"queue-scorer": MeanOut(mean=-0.25, margin=0.1, requests=10)},
    faults=2,
    cpu_seconds=0.1,
)


def lines(found: ShadowOut) -> list[str]:
    out = io.StringIO()
    print_shadow(Console(file=out, width=120), found)
    return out.getvalue().splitlines()


def test_report_has_a_line_for_every_part() -> None:
    assert lines(FULL) == [
        "new.yaml does not decide: line 3, weights.queue: found -1",
        "new.yaml: 100 requests in 60 s",
        "picks another endpoint  10.0% of requests (5.5% to 17.4%)",
        "tokens cached           +30.0 ± 4.0 a request",
        "  in gpu                40.0% of prompt tokens, 42.0% by the shadow",
        "  in cpu                0.0% of prompt tokens, 1.0% by the shadow",
        "first token             -2.0 ms sooner",
        "  queue-scorer          -0.250 ± 0.100 for its picks, where they differ",
        "1 requests on which its filters leave nobody",
        "7 requests left out by shadow.maxCpu",
        "2 answers of its plugins had to be repaired",
    ]


POLICY = FULL.model_copy(
    update={
        "policy": "latency",
        "file": None,
        "refusal": None,
        "ttft_gain_seconds": MeanOut(mean=0.16, margin=0.02, requests=100),
        "live_ttft_seconds": MeanOut(mean=0.64, margin=0.05, requests=100),
        "shadow_ttft_seconds": MeanOut(mean=0.48, margin=0.04, requests=100),
        "terms": {},
    }
)
SWITCH = "switch                  kvatlas policy latency, or policy: latency in the configuration"


def test_policy_is_reported_with_both_times_and_how_to_switch() -> None:
    found = lines(POLICY)

    assert found[0] == "policy latency: 100 requests in 60 s"
    assert found[5:8] == [
        "first token             +160.0 ± 20.0 ms sooner",
        "  expected              640.0 ms now, 480.0 ms by the shadow",
        SWITCH,
    ]


@pytest.mark.parametrize(
    "gain",
    [
        pytest.param(MeanOut(mean=0.16, margin=0.17, requests=100), id="not_sure"),
        pytest.param(MeanOut(mean=0.16, margin=None, requests=1), id="one_request"),
        pytest.param(MeanOut(mean=-0.16, margin=0.02, requests=100), id="slower"),
        pytest.param(None, id="not_predicted"),
    ],
)
def test_no_switch_is_proposed_while_the_gain_may_be_none(gain: MeanOut | None) -> None:
    assert SWITCH not in lines(POLICY.model_copy(update={"ttft_gain_seconds": gain}))


def test_missing_prediction_is_named() -> None:
    found = lines(POLICY.model_copy(update={"ttft_gain_seconds": None}))

    assert found[5] == "first token             not predicted yet: needs more streamed responses"


def test_setting_is_named_when_there_is_no_shadow() -> None:
    assert lines(NO_SHADOW) == [
        "there is no shadow; kvatlas shadow --policy latency compares that policy, shadow.file a configuration"
    ]


def test_metrics_have_gains_and_faults_once_there_are_some(tmp_path: Path) -> None:
    shadow = Shadow(ShadowConfig(file=str(tmp_path / "absent.yaml")), make_config())
    registry = CollectorRegistry()
    registry.register(StateCollector(lambda: shadow_families(shadow)))
    before = generate_latest(registry).decode()
    shadow.tally.cached_gain.add(16.0)
    shadow.tally.ttft_gain_s.add(0.5)
    shadow.faults["queue-scorer", "raised"] += 1
    after = generate_latest(registry).decode()

    assert "kvatlas_shadow_refused 1.0" in before
    for line in (
        "kvatlas_shadow_cached_gain_tokens 16.0",
        "kvatlas_shadow_ttft_gain_seconds 0.5",
        'kvatlas_shadow_faults_total{plugin="queue-scorer",reason="raised"} 1.0',
    ):
        assert line not in before
        assert line in after
