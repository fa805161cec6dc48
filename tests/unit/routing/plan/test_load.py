"""One configuration file or two, and plugins that nobody has."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvatlas.configs.errors import ConfigError
from kvatlas.routing.plan.load import load_scheduled
from kvatlas.routing.plan.plan import make_plan

OWN = "apiVersion: kvatlas/v1\nkind: KVAtlasConfig\n"
PICKER = "apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\n"


@pytest.fixture
def own(tmp_path: Path) -> Path:
    file = tmp_path / "kvatlas.yaml"
    file.write_text(
        f"{OWN}model: {{tokenizer: tiny}}\nendpoints: {{static: [{{name: a, address: 'h:1'}}]}}\nweights: {{queue: 7}}\n"
        "tiers: [{name: hbm, media: [GPU]}, {name: ram, media: [CPU]}]\n"
    )
    return file


@pytest.fixture
def picker(tmp_path: Path) -> Path:
    file = tmp_path / "epp.yaml"
    file.write_text(f"{PICKER}plugins:\n- type: load-aware-scorer\n")
    return file


def scorers(config: Path | None, picker: Path | None = None) -> list[str]:
    return [name for name, _, _ in make_plan(load_scheduled(config, picker).config).profile.scorers]


def test_a_file_of_either_kind_may_come_alone_and_under_either_name(own: Path, picker: Path) -> None:
    assert scorers(own) == scorers(None, own)
    assert scorers(picker) == scorers(None, picker) == ["load-aware-scorer"]


def test_of_two_files_the_second_gives_the_plugins_and_the_first_the_rest(own: Path, picker: Path) -> None:
    config = load_scheduled(own, picker).config

    assert scorers(own, picker) == ["load-aware-scorer"]
    assert ([each.name for each in config.endpoints.static], [tier.name for tier in config.tiers]) == (
        ["a"],
        ["hbm", "ram"],
    )
    assert config.model.tokenizer == str(own.parent / "tiny")


def test_plugins_are_checked_against_the_tiers_of_the_other_file(own: Path, picker: Path) -> None:
    picker.write_text(f"{PICKER}plugins:\n- type: prefix-cache-scorer\n  parameters: {{tier: gpu}}\n")

    with pytest.raises(
        ConfigError, match=r"line 5, plugins.0..parameters.tier: found 'gpu', .* known: hbm, ram"
    ):
        load_scheduled(own, picker)


@pytest.mark.parametrize("names", [(None, None)])
def test_no_file_is_a_mistake(names: tuple[None, None]) -> None:
    with pytest.raises(ValueError, match="one file at least"):
        load_scheduled(*names)


def test_unknown_plugins_stop_the_start_unless_they_may_be_left_out(picker: Path) -> None:
    picker.write_text(f"{PICKER}plugins:\n- type: queue-scorer\n- type: moon-scorer\n- type: burst-scorer\n")

    with pytest.raises(ConfigError) as raised:
        load_scheduled(picker)
    loaded = load_scheduled(picker, ignore_unknown=True)

    assert str(raised.value).splitlines()[0].endswith("epp.yaml: 2 problems")
    assert [plugin.type for plugin in loaded.config.plugins] == ["queue-scorer"]
    assert loaded.notes == (
        "plugin moon-scorer is left out: kvatlas does not have its type",
        "plugin burst-scorer is left out: kvatlas does not have its type",
    )


def test_other_mistakes_stop_the_start_though_unknown_plugins_may_be_left_out(picker: Path) -> None:
    picker.write_text(
        f"{PICKER}plugins:\n- type: load-aware-scorer\n  parameters: {{threshold: x}}\n- type: x\n"
    )

    with pytest.raises(ConfigError, match=r"line 5, .*threshold: found 'x', expected a whole number"):
        load_scheduled(picker, ignore_unknown=True)
