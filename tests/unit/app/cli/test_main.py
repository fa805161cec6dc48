"""`kvatlas config` and the flags of `kvatlas serve`, as far as they need no running process."""

from __future__ import annotations

import importlib.resources
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvatlas.app.cli.reference_flags import our_command_line
from kvatlas.routing.plan.beyond import beyond_reference
from kvatlas.routing.plan.load import load_scheduled
from kvatlas.routing.plan.plan import make_plan
from support.command import invoked

FOLDER = Path(str(importlib.resources.files("kvatlas.configs")))


def run(*arguments: str | Path) -> tuple[int, str, str]:
    """Run a command; return exit status, stdout and stderr."""
    result = invoked([str(each) for each in arguments])
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def unknown(tmp_path: Path) -> Path:
    file = tmp_path / "epp.yaml"
    file.write_text(
        "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
        "plugins: [{type: queue-scorer}, {type: moon-scorer}, {type: openai-parser}]\n"
    )
    return file


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(
            [], "--config FILE is missing; an EndpointPickerConfig may come as --config-file", id="no_file"
        ),
        pytest.param(["--config", "nowhere.yaml"], "nowhere.yaml: no such file", id="missing_file"),
        pytest.param(
            ["--config", FOLDER / "default.yaml", "--config-file", FOLDER / "default.yaml"],
            "kind: found 'KVAtlasConfig', expected 'EndpointPickerConfig' together with another configuration file",
            id="two_of_one_kind",
        ),
        pytest.param(["--config", FOLDER / "default.yaml", "--rest", "x"], "--rest: found 'x'", id="address"),
    ],
)
def test_serve_refuses_wrong_use_with_one_clear_message(arguments: list[str | Path], message: str) -> None:
    status, _, stderr = run("serve", *arguments)

    assert status == 2
    assert message in stderr


@pytest.mark.parametrize(
    ("given", "message"),
    [
        pytest.param(["--config-text", "a: b"], "--config-text: line 1, kind: missing, expected", id="text"),
        pytest.param(
            ["--config-text", "", "--config-file", "x"],
            "--config-file and --config-text are given",
            id="both",
        ),
        pytest.param(
            ["--watch-config-file=maybe", "--pool-name=p"], "--watch-config-file: found 'maybe'", id="watch"
        ),
        pytest.param(
            ["--pool-name=p", "--drain-timeout=1"], "--drain-timeout: found '1', expected", id="value"
        ),
        pytest.param(["--zap-encoder=xml"], "--zap-encoder: found 'xml'", id="log"),
    ],
)
def test_serve_refuses_values_of_the_references_flags(given: list[str], message: str) -> None:
    line = our_command_line(given)
    result = invoked(["serve", *line.arguments], obj=line.reference)

    assert result.exit_code == 2
    assert message in result.stderr


def test_help_names_the_references_flags() -> None:
    _, stdout, _ = run("serve", "--help")
    assert "--drain-timeout" in stdout


def test_check_names_settings_without_effect() -> None:
    status, stdout, stderr = run("config", "check", FOLDER / "precise.yaml")

    assert (status, stderr) == (0, "")
    assert (
        "plugin endpoint-notification-source has no effect: kvatlas forgets what a removed endpoint held by itself\n"
        in stdout
    )
    assert stdout.splitlines()[-1].endswith("precise.yaml: good, 0 endpoints, 3 tiers, 4 scorers")


def test_check_names_an_unknown_plugin_and_may_leave_it_out(unknown: Path) -> None:
    refused = run("config", "check", unknown)
    status, stdout, _ = run("config", "check", unknown, "--ignore-unknown-plugins")

    assert refused[0] == 1
    assert "line 3, plugins[1].type: found 'moon-scorer', which kvatlas does not have" in refused[2]
    assert status == 0
    assert "plugin moon-scorer is left out: kvatlas does not have its type\n" in stdout


STAGES = (
    "plugins: [{type: queue-scorer}, {type: prefill-filter}, {type: decode-filter}, {type: disagg-profile-handler}]\n"
    "schedulingProfiles:\n"
    "- {name: prefill, plugins: [{pluginRef: prefill-filter}, {pluginRef: queue-scorer}]}\n"
    "- {name: decode, plugins: [{pluginRef: decode-filter}, {pluginRef: queue-scorer}]}\n"
)


@pytest.mark.parametrize(
    ("live", "shadow", "message"),
    [
        pytest.param(
            "shadow: {file: other.yaml}\n", None, r"shadow\.file: .*other\.yaml: no such file", id="no_file"
        ),
        pytest.param(
            "shadow: {file: other.yaml}\n",
            "weights: {queue: -1}\n",
            r"shadow\.file: .*weights\.queue.*-1",
            id="bad_file",
        ),
        pytest.param(
            "shadow: {policy: latency}\n" + STAGES,
            None,
            r"shadow\.policy: .*prefill",
            id="policy",
        ),
    ],
)
def test_check_names_a_shadow_that_cannot_be_used(
    live: str, shadow: str | None, message: str, tmp_path: Path
) -> None:
    head = "apiVersion: kvatlas/v1\nkind: KVAtlasConfig\n"
    if shadow is not None:
        (tmp_path / "other.yaml").write_text(head + shadow)
    file = tmp_path / "kvatlas.yaml"
    file.write_text(head + live)

    status, stdout, stderr = run("config", "check", file)

    assert (status, stdout) == (1, "")
    assert re.search(message, stderr), stderr


@pytest.mark.parametrize("shadow", ["{policy: latency}", "{file: kvatlas.yaml}"])
def test_check_accepts_a_shadow_that_can_be_used(shadow: str, tmp_path: Path) -> None:
    file = tmp_path / "kvatlas.yaml"
    file.write_text(f"apiVersion: kvatlas/v1\nkind: KVAtlasConfig\nshadow: {shadow}\n")

    status, _, stderr = run("config", "check", file)

    assert (status, stderr) == (0, "")


@pytest.mark.parametrize("name", ["default", "two-servers", "tiered-v0.4", "tiered-v1", "precise", "sidecar"])
def test_shown_file_means_the_same_when_loaded_again(name: str, tmp_path: Path) -> None:
    _, shown, _ = run("config", "show", FOLDER / f"{name}.yaml")
    again = tmp_path / "again.yaml"
    again.write_text(shown)

    status, stdout, _ = run("config", "show", again)

    written: dict[str, Any] = yaml.safe_load(stdout)
    assert (status, written) == (0, yaml.safe_load(shown))
    assert ("weights" in written) == (name == "default")


def test_shown_file_has_the_tiers_as_the_producers_say() -> None:
    _, shown, _ = run("config", "show", FOLDER / "tiered-v0.4.yaml")

    tiers: list[dict[str, Any]] = yaml.safe_load(shown)["tiers"]
    assert [(tier["source"], tier["lruCapacityPerServer"]) for tier in tiers[:2]] == [
        ("routing", "auto"),
        ("inferred", 41000),
    ]


def test_schema_is_printed_as_committed() -> None:
    assert run("config", "schema") == (0, (FOLDER / "schema.json").read_text(), "")


def test_shown_file_of_the_reference_names_what_has_no_effect_and_what_goes_beyond_it(tmp_path: Path) -> None:
    _, shown, _ = run("config", "show", FOLDER / "precise.yaml")

    title, _, rest = shown.partition("# without effect:\n")[2].partition("# beyond the reference:\n")
    assert (
        "# - plugin endpoint-notification-source has no effect: kvatlas forgets what a removed endpoint held by itself\n"
        in title
    )
    rules = [line.removeprefix("# - ").partition(":")[0] for line in rest.splitlines()]
    assert rules == ["predictions", "trust credit", "audit credit", "part blocks", "cold requests"]


@pytest.mark.parametrize(("auto_tune", "is_named"), [(True, True), (False, False)])
def test_sizes_of_the_engines_are_beyond_the_reference_until_they_are_switched_off(
    tmp_path: Path, *, auto_tune: bool, is_named: bool
) -> None:
    own = tmp_path / "own.yaml"
    approximate = {"autoTune": auto_tune, "minBlockSizeTokens": 64}
    own.write_text(
        yaml.safe_dump({"apiVersion": "kvatlas/v1", "kind": "KVAtlasConfig", "approximate": approximate})
    )

    rules = list(beyond_reference(make_plan(load_scheduled(own, FOLDER / "tiered-v1.yaml").config)))

    assert any(rule.startswith("full servers: ") for rule in rules)
    assert any("off with approximate.autoTune: false" in rule for rule in rules) == is_named


@pytest.mark.parametrize(
    ("section", "rule"),
    [
        pytest.param({"predictions": {"enabled": False}}, "predictions", id="predictions"),
        pytest.param(
            {"events": {"trustCredit": dict.fromkeys(("live", "replaying", "partial", "stale", "dark"), 1)}},
            "trust credit",
            id="trust",
        ),
        pytest.param({"audit": {"lowerCredit": False}}, "audit credit", id="audit"),
        pytest.param({"scoring": {"wholeBlocks": True}}, "part blocks", id="part_blocks"),
    ],
)
def test_rule_beyond_the_reference_is_off_with_the_key_that_it_names(
    section: dict[str, Any], rule: str, tmp_path: Path
) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(yaml.safe_dump({"apiVersion": "kvatlas/v1", "kind": "KVAtlasConfig"} | section))
    (key,) = section
    (below,) = section[key]

    before, after = (
        list(beyond_reference(make_plan(load_scheduled(file, FOLDER / "precise.yaml").config)))
        for file in (None, own)
    )

    assert [line for line in before if line not in after] == [
        line for line in before if line.startswith(f"{rule}: ") and f"off with {key}.{below}: " in line
    ]


def test_refused_argument_is_told_in_plain_words() -> None:
    result = invoked(["policy", "foo"])

    assert result.exit_code == 2
    assert "Value error" not in result.output
    assert "'foo' is not one of 'weights', 'latency'" in " ".join(result.output.replace("│", "").split())


@pytest.mark.parametrize("option", ["--url", "--token-file", "--ca-file"])
def test_doctor_refuses_a_file_together_with_a_running_process(option: str) -> None:
    status, _, stderr = run("doctor", "--config", FOLDER / "default.yaml", option, "http://127.0.0.1:1")

    assert status == 2
    assert stderr == f"kvatlas: --config checks a file and {option} a running kvatlas: give one of them\n"
