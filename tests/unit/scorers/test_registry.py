"""Registration, building with strict parameters, and what the errors say."""

from __future__ import annotations

import pytest

from kvatlas.scorers.builtin import builtin_registry
from kvatlas.scorers.errors import ParametersError, RegistryError
from kvatlas.scorers.max_score import MaxScorePicker
from kvatlas.scorers.queue import QueueScorer
from kvatlas.scorers.registry import NoParams, Registry


def test_builtin_plugins_have_the_types_they_are_registered_under() -> None:
    registry = builtin_registry()
    parameters = {"prefix-cache-scorer": {"tier": "gpu"}}

    scorers = [registry.scorer(name, parameters.get(name, {})).type for name in registry.scorer_types]
    pickers = [registry.picker(name, {}).type for name in registry.picker_types]

    assert tuple(scorers) == ("queue-scorer", "kv-cache-utilization-scorer", "prefix-cache-scorer")
    assert tuple(scorers) == registry.scorer_types
    assert tuple(pickers) == ("max-score-picker",) == registry.picker_types


def test_scorer_registered_twice_raises() -> None:
    registry = builtin_registry()

    with pytest.raises(RegistryError, match="'queue-scorer' is registered twice"):
        registry.add_scorer("queue-scorer", NoParams, lambda _: QueueScorer())


def test_picker_registered_twice_raises() -> None:
    registry = builtin_registry()

    with pytest.raises(RegistryError, match="'max-score-picker' is registered twice"):
        registry.add_picker("max-score-picker", NoParams, lambda _: MaxScorePicker())


@pytest.mark.parametrize(
    ("plugin_type", "parameters", "message"),
    [
        pytest.param("prefix-cache-scorer", {}, "missing required field `tier`", id="missing"),
        pytest.param("prefix-cache-scorer", {"tier": ""}, "length >= 1", id="empty"),
        pytest.param("prefix-cache-scorer", {"tier": 1}, "Expected `str`, got `int`", id="wrong_type"),
        pytest.param("prefix-cache-scorer", {"tier": "gpu", "teir": 1}, "unknown field `teir`", id="unknown"),
        pytest.param("queue-scorer", {"threshold": 1}, "unknown field `threshold`", id="takes_none"),
    ],
)
def test_wrong_parameters_name_the_plugin_and_the_key(
    plugin_type: str, parameters: dict[str, object], message: str
) -> None:
    with pytest.raises(ParametersError, match=message) as raised:
        builtin_registry().scorer(plugin_type, parameters)

    assert str(raised.value).startswith(f"parameters of {plugin_type}: ")


def test_unknown_type_names_the_nearest_and_the_known() -> None:
    with pytest.raises(RegistryError) as raised:
        builtin_registry().scorer("queue-scorers", {})

    assert str(raised.value) == (
        "no scorer 'queue-scorers'; did you mean 'queue-scorer'? "
        "known: kv-cache-utilization-scorer, prefix-cache-scorer, queue-scorer"
    )


def test_unknown_type_without_a_near_one_names_the_known() -> None:
    registry = Registry()
    registry.add_picker("max-score-picker", NoParams, lambda _: MaxScorePicker())

    with pytest.raises(RegistryError, match="no picker 'x'; known: max-score-picker"):
        registry.picker("x", {})
