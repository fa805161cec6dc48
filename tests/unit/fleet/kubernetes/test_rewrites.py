from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kvatlas.fleet.kubernetes.rewrites import InferenceModelRewrite, ModelRewrites


def made(name: str, *rules: dict[str, Any], at: str = "2026-01-01T00:00:00Z") -> InferenceModelRewrite:
    found = {
        "metadata": {"name": name, "creationTimestamp": at},
        "spec": {"poolRef": {"name": "p"}, "rules": list(rules)},
    }
    return msgspec.json.decode(msgspec.json.encode(found), type=InferenceModelRewrite)


def rule(models: str, *targets: str | tuple[str, int]) -> dict[str, Any]:
    """Return a rule for the models in `models`, separated by spaces; without models it matches all."""
    named = [(each, 0) if isinstance(each, str) else each for each in targets]
    return {
        "matches": [{"model": {"type": "Exact", "value": model}} for model in models.split()],
        "targets": [
            {"modelRewrite": name} | ({"weight": weight} if weight else {}) for name, weight in named
        ],
    }


def rewrites(*found: InferenceModelRewrite, draw: float = 0.0) -> ModelRewrites:
    made = ModelRewrites(lambda: draw)
    made.use(found)
    return made


OLD, YOUNG = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param([], "", id="none"),
        pytest.param([made("a", rule("x", "y"))], "", id="other_model"),
        pytest.param([made("a", rule("w m", "y"))], "y", id="one_of_its_models"),
        pytest.param([made("a", rule("", "all"))], "all", id="every_model"),
        pytest.param([made("a", rule("", "all"), rule("m", "exact"))], "exact", id="exact_goes_first"),
        pytest.param(
            [made("a", rule("m", "young"), at=YOUNG), made("b", rule("m", "old"), at=OLD)],
            "old",
            id="older_first",
        ),
        pytest.param([made("b", rule("m", "b")), made("a", rule("m", "a"))], "a", id="by_name_when_as_old"),
        pytest.param([made("a", rule("m", "first"), rule("m", "second"))], "first", id="first_rule"),
        pytest.param([made("a", rule("m"), rule("", "all"))], "", id="no_target"),
        pytest.param(
            [made("a", rule("", "first")), made("b", rule("", "second"))], "first", id="first_for_all"
        ),
    ],
)
def test_model_becomes_what_the_first_rule_says(found: list[InferenceModelRewrite], expected: str) -> None:
    assert rewrites(*found).target("m") == expected
    assert rewrites(*found).has_rules == bool(found)


@pytest.mark.parametrize(("draw", "target"), [(0.0, "a"), (0.24, "a"), (0.26, "b"), (0.999, "b"), (1.0, "b")])
def test_target_is_drawn_by_weight(draw: float, target: str) -> None:
    assert rewrites(made("r", rule("m", ("a", 1), ("b", 3))), draw=draw).target("m") == target


def test_targets_are_as_likely_as_each_other_when_they_have_no_weights() -> None:
    found = made("r", rule("m", "a", "b"))
    assert [rewrites(found, draw=draw).target("m") for draw in (0.49, 0.51)] == ["a", "b"]


def test_rules_end_when_others_take_their_place() -> None:
    found = rewrites(made("a", rule("m", "x"), rule("", "y")))
    found.use([])
    assert (found.has_rules, found.target("m")) == (False, "")
