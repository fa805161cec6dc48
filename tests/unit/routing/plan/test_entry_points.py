"""Plugins of other packages: found by name, imported only when named, refused with a reason."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvatlas.configs.schema import KVAtlasConfig, PluginConfig
from kvatlas.routing.plan.entry_points import offered_plugins
from kvatlas.routing.plan.plan import make_plan, scheduling_problems
from support.plugins import install_faulty


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    install_faulty(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield
    sys.modules.pop("faulty_plugins", None)


def config(plugin_type: str, **parameters: object) -> KVAtlasConfig:
    plugin = PluginConfig(type=plugin_type, parameters=parameters)
    return KVAtlasConfig(api_version="kvatlas/v1", plugins=(plugin,))


def test_only_plugins_that_are_named_are_imported() -> None:
    assert {"not-finite", "broken", "nobody", "choosy"} <= offered_plugins().names
    make_plan(config("active-request-scorer"))
    assert "faulty_plugins" not in sys.modules

    make_plan(config("not-finite"))

    assert "faulty_plugins" in sys.modules


def test_each_plugin_of_a_type_gets_its_own_parameters() -> None:
    plugins = tuple(
        PluginConfig(type="choosy", name=colour, parameters={"colour": colour})
        for colour in ("blue", "green")
    )

    plan = make_plan(KVAtlasConfig(api_version="kvatlas/v1", plugins=plugins))

    assert [getattr(scorer, "colour", None) for _, scorer, _ in plan.profile.scorers] == ["blue", "green"]


@pytest.mark.parametrize(
    ("plugin_type", "parameters", "problem"),
    [
        pytest.param(
            "missing",
            {},
            "plugins[0].type: 'missing' cannot be imported from faulty_plugins:Missing (faulty-plugins): AttributeError",
            id="import",
        ),
        pytest.param(
            "queue-scorer",
            {},
            "plugins[0].type: 'queue-scorer' comes from more than one package: faulty-plugins, kvatlas; remove all",
            id="type_of_kvatlas",
        ),
        pytest.param(
            "wrong-name",
            {},
            "plugins[0].type: faulty_plugins:Nobody makes no picker: it must have pick() and the type 'wrong-name'",
            id="other_type",
        ),
        pytest.param(
            "no-scorer",
            {},
            "plugins[0].type: faulty_plugins:Broken makes no scorer: it must have rate()",
            id="kind",
        ),
        pytest.param(
            "no-class",
            {},
            "plugins[0].type: 'no-class' is faulty_plugins:CONSTANT (faulty-plugins), which is no class",
            id="object",
        ),
        pytest.param(
            "odd-params",
            {},
            "plugins[0].type: 'odd-params' is faulty_plugins:OddParams (faulty-plugins), which",
            id="params",
        ),
        pytest.param(
            "choosy",
            {"color": "blue"},
            "plugins[0].parameters.color: unknown key; did you mean 'colour'? allowed: colour",
            id="unknown_parameter",
        ),
        pytest.param(
            "choosy",
            {"colour": "grey"},
            "plugins[0]: 'choosy' cannot be built: ValueError: no grey",
            id="constructor",
        ),
    ],
)
def test_plugin_that_cannot_be_used_is_a_problem_with_its_reason(
    plugin_type: str, parameters: dict[str, object], problem: str
) -> None:
    found = scheduling_problems(config(plugin_type, **parameters))

    assert str(found[0]).startswith(problem)


def test_type_that_two_packages_offer_is_refused(tmp_path: Path) -> None:
    info = tmp_path / "other_plugins-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other-plugins\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[kvatlas.scorers]\nraises = other_plugins:Raises\n")

    (problem,) = scheduling_problems(config("raises"))

    assert "'raises' comes from more than one package: faulty-plugins, other-plugins" in str(problem)
