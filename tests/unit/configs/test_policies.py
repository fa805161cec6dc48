"""Policies by name: what a file may have beside them, and what they stand for."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from kvatlas.configs.changes import changes
from kvatlas.configs.errors import ConfigError
from kvatlas.configs.loader import load_config, load_file
from kvatlas.configs.plain import plain
from kvatlas.configs.policies import expanded, policy_of, with_policy, with_shadow

HEAD = "apiVersion: kvatlas/v1\nkind: KVAtlasConfig\n"
PLUGINS = "plugins: [{type: queue-scorer}]\n"
REFERENCE = "apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\nplugins: [{type: queue-scorer}]\n"


def written(config_file: Path, text: str) -> Path:
    config_file.write_text(HEAD + text)
    return config_file


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param(
            f"policy: latency\n{PLUGINS}",
            "line 3, policy: found policy together with plugins; remove one of them",
            id="plugins",
        ),
        pytest.param(
            f"policy: weights\n{PLUGINS}",
            "line 3, policy: found policy together with plugins; remove one of them",
            id="plugins_with_weights",
        ),
        pytest.param(
            "policy: latency\nschedulingProfiles: [{plugins: []}]",
            "line 4, schedulingProfiles: found schedulingProfiles together with policy 'latency'",
            id="profiles",
        ),
        pytest.param(
            "policy: latncy",
            "line 3, policy: found 'latncy', expected 'latency' or 'weights'",
            id="name",
        ),
        pytest.param(
            "shadow: {policy: latency, file: new.yaml}",
            "line 3, shadow.policy: found policy together with file; remove one of them",
            id="shadow",
        ),
    ],
)
def test_contradiction_is_named_with_its_line(config_file: Path, text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(written(config_file, text))

    assert problem in str(caught.value)


def test_policy_beside_a_file_with_plugins_is_refused(config_file: Path, tmp_path: Path) -> None:
    picker = tmp_path / "picker.yaml"
    picker.write_text(REFERENCE)
    base = load_config(written(config_file, "policy: latency"))

    with pytest.raises(
        ConfigError, match="plugins together with policy 'latency' of the other configuration"
    ):
        load_file(picker, base=base)


def test_weights_beside_another_policy_are_noted(config_file: Path) -> None:
    loaded = load_file(written(config_file, "policy: latency\nweights: {queue: 3}"))

    assert loaded.notes == ("weights: no effect with policy 'latency'",)
    assert with_policy(loaded.config, "weights").weights.queue == 3


def test_default_policy_stands_for_no_plugins(config_file: Path) -> None:
    config = load_config(written(config_file, "weights: {queue: 3}"))

    assert expanded(config) is config
    assert policy_of(config) == "weights"
    assert policy_of(load_config(written(config_file, PLUGINS))) == "plugins"


def test_shown_configuration_has_only_the_keys_that_count(config_file: Path) -> None:
    texts = ("policy: latency", "weights: {queue: 3}", PLUGINS)
    configs = [load_config(written(config_file, text)) for text in texts]
    keys = ({"policy"}, {"policy", "weights"}, {"plugins", "schedulingProfiles"})

    for config, wanted in zip(configs, keys, strict=True):
        shown = plain(expanded(config))
        config_file.write_text(msgspec.yaml.encode(shown).decode())
        assert shown.keys() & {"policy", "weights", "plugins", "schedulingProfiles"} == wanted
        assert expanded(load_config(config_file)).plugins == expanded(config).plugins


def test_policy_and_shadow_change_without_restart(config_file: Path) -> None:
    before = load_config(written(config_file, ""))

    found = changes(before, with_shadow(with_policy(before, "latency"), "weights"))

    assert all(change.is_live for change in found)
    assert [str(change) for change in found if change.where in ("policy", "shadow.policy")] == [
        "policy: 'weights' -> 'latency'",
        "shadow.policy: absent -> 'weights'",
    ]


def test_shadow_by_policy_takes_the_place_of_a_file(config_file: Path) -> None:
    before = load_config(written(config_file, "shadow: {file: new.yaml, fraction: 0.5}"))

    after = with_shadow(before, "latency").shadow

    assert (after.policy, after.file, after.fraction) == ("latency", "", 0.5)
    assert with_shadow(before, None).shadow.file == ""
