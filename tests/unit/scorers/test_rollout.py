"""disaggregatedset-rollout-screener: weights of revisions, headers, and selectors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from kvatlas.configs.decode import decode
from kvatlas.scorers.builtin import builtin_registry
from kvatlas.scorers.core.decision import Decision
from kvatlas.scorers.core.max_score import MaxScorePicker
from kvatlas.scorers.core.model import Candidate, RequestView
from kvatlas.scorers.core.params import BuildContext
from kvatlas.scorers.core.profile import Profile
from kvatlas.scorers.errors import ParametersError
from kvatlas.scorers.screeners.rollout import RolloutParams, RolloutScreener
from kvatlas.scorers.screeners.selector import LabelSelector
from support.candidates import endpoint
from support.rating import decide

SET = "disaggregatedset.x-k8s.io"
HEADERS = [
    {"name": "revision", "headerName": "X-Revision", "labelKey": f"{SET}/revision", "mode": "strict"},
    {"name": "slice", "headerName": "x-slice", "labelKey": f"{SET}/slice", "mode": "prefer"},
]


def params(mode: str = "sum", roles: tuple[str, ...] = ("prefill", "decode"), **more: Any) -> dict[str, Any]:
    gating = {"mode": mode, "requireRoles": {"values": list(roles)}}
    return {
        "scope": {"labelSelector": f"{SET}/name=mine"},
        "revisionGating": gating,
        "headerSelectors": HEADERS,
    } | more


def screener(given: dict[str, Any]) -> RolloutScreener:
    decoded = decode(given, RolloutParams)
    assert not isinstance(decoded, list), decoded
    blueprint = builtin_registry().screeners.get(RolloutScreener.type)
    assert blueprint is not None
    made = blueprint.make(decoded, BuildContext())
    assert isinstance(made, RolloutScreener)
    return made


def pods(revision: str, n_prefill: int, n_decode: int, **labels: str) -> list[Candidate]:
    own = {f"{SET}/name": "mine", f"{SET}/revision": revision, f"{SET}/slice": "s"} | labels
    roles = ["prefill"] * n_prefill + ["decode"] * n_decode
    return [endpoint(f"{revision}-{n}", labels=own | {f"{SET}/role": role}) for n, role in enumerate(roles)]


def decided(
    given: dict[str, Any],
    fleet: list[Candidate],
    headers: Mapping[str, str] = {},
    *,
    draw: float = 0.0,
) -> Decision:
    profile = Profile([], MaxScorePicker(), [("s", screener(given))], screeners=["s"])
    view = RequestView(model="m", now=0.0, headers=headers)
    return decide(profile, view, fleet, rng=lambda: draw)


def kept(decision: Decision) -> set[str]:
    return {each.name.partition("-")[0] for each in decision.kept}


FLEET = [*pods("a", 2, 9), *pods("b", 1, 1)]


@pytest.mark.parametrize(
    ("mode", "share_of_a"),
    [pytest.param("sum", 11 / 13, id="sum"), pytest.param("max-role", 9 / 10, id="max_role")],
)
def test_revision_is_drawn_by_its_weight(mode: str, share_of_a: float) -> None:
    assert kept(decided(params(mode), FLEET, draw=share_of_a - 0.001)) == {"a"}
    assert kept(decided(params(mode), FLEET, draw=share_of_a + 0.001)) == {"b"}


def test_revision_without_a_required_role_takes_no_requests() -> None:
    fleet = [*pods("a", 0, 3), *pods("b", 1, 1)]

    assert kept(decided(params(), fleet)) == {"b"}
    assert kept(decided(params(), fleet, {"x-revision": "a"})) == set()


@pytest.mark.parametrize(
    "labels", [{f"{SET}/name": "other"}, {f"{SET}/role": "encode"}], ids=["other_set", "other_role"]
)
def test_endpoint_out_of_scope_gives_a_revision_no_weight(labels: dict[str, str]) -> None:
    decision = decided(params(), [endpoint("a-0", labels={**pods("a", 1, 0)[0].labels, **labels})])

    assert (decision.picked, kept(decision)) == ((), set())


@pytest.mark.parametrize(
    ("mode", "headers", "expected"),
    [
        pytest.param("sum", {"x-revision": "b"}, {"b"}, id="header_in_place_of_the_draw"),
        pytest.param("sum", {"x-revision": "c"}, set[str](), id="unknown_revision"),
        pytest.param("sum", {"x-slice": "other"}, {"a"}, id="preference_drops_nothing"),
        pytest.param("disabled", {}, {"a", "b"}, id="no_gating"),
        pytest.param("disabled", {"x-revision": "b"}, {"b"}, id="header_without_gating"),
    ],
)
def test_strict_header_selects(mode: str, headers: dict[str, str], expected: set[str]) -> None:
    assert kept(decided(params(mode), FLEET, headers)) == expected


def test_response_gets_the_labels_of_the_picked_endpoint() -> None:
    given = params()
    decision = decided(given, FLEET)

    assert screener(given).response_headers(decision) == {"x-revision": "a", "x-slice": "s"}


def test_decision_says_that_a_screener_left_nobody() -> None:
    profile = Profile([], MaxScorePicker(), [("s", screener(params()))], screeners=["s"])

    decision = decide(profile, RequestView(model="m", now=0.0), pods("a", 0, 1), rng=lambda: 0.0)

    assert profile.is_screened(decision)
    assert not Profile([], MaxScorePicker()).is_screened(decision)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        pytest.param(params(roles=()), "found no roles", id="no_roles"),
        pytest.param(params(roles=("a", "a")), "found the role 'a' twice", id="role_twice"),
        pytest.param(
            params(headerSelectors=HEADERS[:1] * 2), "found the name 'revision' twice", id="name_twice"
        ),
        pytest.param(
            params(scope={"labelSelector": "a=b=c"}), "found 'a=b=c', expected a condition", id="selector"
        ),
    ],
)
def test_impossible_parameters_are_refused(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(ParametersError, match=problem):
        screener(given)


@pytest.mark.parametrize(
    ("selector", "selects"),
    [
        ("app=v", True), ("app==v", True), ("app!=v", False), ("tier!=x", True), ("app", True), ("!app", False),
        ("! tier", True), ("app in (u, v)", True), ("app notin (u,v)", False), ("app=v,app in (v),!tier", True),
        ("app=v,tier", False), ("k8s.io/a-b=", True),
    ],
)  # fmt: skip
def test_label_selector_is_read_as_kubernetes_does(selector: str, selects: bool) -> None:
    assert LabelSelector.parse(selector).selects({"app": "v", "k8s.io/a-b": ""}) == selects
