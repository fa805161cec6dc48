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


def test_policy_without_stages_is_refused() -> None:
    config = make_config(disaggregation={"encode": True}, policy="latency")

    with pytest.raises(SchedulingError, match="disaggregation: found together with policy 'latency'"):
        make_plan(config)
