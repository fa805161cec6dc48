"""Stages on different servers in a file without plugins: `disaggregation`."""

from __future__ import annotations

from typing import Any

import pytest

from kvatlas.routing.errors import SchedulingError
from kvatlas.routing.plan.plan import make_plan
from kvatlas.routing.plan.weights import weights_of, with_weights
from kvatlas.scorers.core.decision import Decision
from kvatlas.scorers.core.model import RequestView
from kvatlas.scorers.core.profile import Profile
from kvatlas.scorers.core.scheduler import Scheduler
from support.fleets import make_config
from support.rating import decide
from support.stages import FLEET

MEDIA = (1,)


def decided(section: dict[str, Any], *, n_tokens: int = 160, media: tuple[int, ...] = ()) -> Decision:
    profile = make_plan(make_config(disaggregation=section)).profile
    return decide(profile, RequestView(model="m", now=0.0, n_tokens=n_tokens, media=media), FLEET)


def kind_of(decision: Decision) -> str:
    assert decision.placement is not None
    return decision.placement.kind


def test_without_the_section_one_profile_decides() -> None:
    assert isinstance(make_plan(make_config()).profile, Profile)
    assert isinstance(make_plan(make_config(disaggregation={"missingStage": "skip"})).profile, Profile)


@pytest.mark.parametrize(
    ("section", "n_tokens", "media", "kind"),
    [
        pytest.param({"uncachedTokens": 160}, 160, (), "prefill-decode", id="long"),
        pytest.param({"uncachedTokens": 160}, 159, (), "decode-only", id="short"),
        pytest.param({"encode": True}, 160, MEDIA, "encode-decode", id="media"),
        pytest.param({"encode": True}, 160, (), "decode-only", id="no_media"),
        pytest.param({"uncachedTokens": 1, "encode": True}, 160, MEDIA, "encode-prefill-decode", id="all"),
    ],
)
def test_section_says_which_stages_are_apart(
    section: dict[str, Any], n_tokens: int, media: tuple[int, ...], kind: str
) -> None:
    decision = decided(section, n_tokens=n_tokens, media=media)

    assert decision.picked == ("d1",)
    assert kind_of(decision) == kind


def test_every_stage_has_the_weights() -> None:
    config = make_config(disaggregation={"uncachedTokens": 1}, weights={"queue": 5})
    plan = make_plan(config)
    changed = make_plan(with_weights(config, plan, {"queue": 7}))

    assert weights_of(plan)["queue"] == 5
    assert {name: weight for name, _, weight in changed.profile.scorers if "queue" in name} == {
        "decode/queue-scorer": 7,
        "prefill/queue-scorer": 7,
    }


def test_section_beside_plugins_is_refused() -> None:
    config = make_config(disaggregation={"encode": True}, plugins=[{"type": "queue-scorer"}])

    with pytest.raises(SchedulingError, match="disaggregation: found together with plugins"):
        make_plan(config)


@pytest.mark.parametrize(
    ("section", "handler", "kind"),
    [
        pytest.param({"uncachedTokens": 1}, "joint-cost-handler", "decode-only", id="prefill"),
        pytest.param({"encode": True}, "disagg-profile-handler", "encode-decode", id="encode"),
        pytest.param(
            {"uncachedTokens": 1, "encode": True, "missingStage": "skip"},
            "joint-cost-handler",
            "encode-decode",
            id="both",
        ),
    ],
)
def test_policy_latency_has_stages_too(section: dict[str, Any], handler: str, kind: str) -> None:
    plan = make_plan(make_config(disaggregation=section, policy="latency"))
    made = plan.profile
    assert isinstance(made, Scheduler)

    decision = decide(made, RequestView(model="m", now=0.0, n_tokens=160, media=MEDIA), FLEET)

    assert made.handler.type == handler
    assert kind_of(decision) == kind
    assert make_plan(plan.config).config == plan.config, "a plan's configuration makes the same plan"


def test_policy_latency_compares_pairs_from_that_many_uncached_tokens_on() -> None:
    config = make_config(disaggregation={"uncachedTokens": 500, "missingStage": "refuse"}, policy="latency")
    profile = make_plan(config).profile
    without = [each for each in FLEET if not each.name.startswith("p")]

    found = [decide(profile, RequestView(model="m", now=0.0, n_tokens=n), without).picked for n in (499, 500)]

    assert found[0]
    assert not found[1]


def test_size_of_the_state_of_a_token_is_that_of_the_model() -> None:
    def transfer_ms(**model: Any) -> float:
        config = make_config(disaggregation={"uncachedTokens": 1}, policy="latency", model=model)
        decision = decide(make_plan(config).profile, RequestView(model="m", now=0.0, n_tokens=10_000), FLEET)
        assert decision.placement is not None
        return decision.placement.options[-1].terms_ms["transfer"]

    latency_ms = 5.0
    assert transfer_ms() - latency_ms == pytest.approx(10_000 * 262_144 * 8 / 100e9 * 1000)
    assert transfer_ms(kvBytesPerToken=131_072) - latency_ms == pytest.approx(
        10_000 * 131_072 * 8 / 100e9 * 1000
    )
