"""The shipped configuration files and the examples of the documentation: what they decide, and that they are valid."""

from __future__ import annotations

import importlib.resources
import json
import re
from pathlib import Path

import jsonschema
import pytest
import yaml

from kvatlas.routing.plan.json_schema import json_schema
from kvatlas.routing.plan.load import load_scheduled
from kvatlas.routing.plan.plan import make_plan
from kvatlas.scorers.core.model import RequestView
from support.candidates import endpoint, held, load, no_chance
from support.rating import decide
from support.tree import ROOT, tracked_files

FOLDER = Path(str(importlib.resources.files("kvatlas.configs")))
FILES = sorted(FOLDER.glob("*.yaml"))
SCHEMA = json.loads((FOLDER / "schema.json").read_text())

REQUEST = RequestView(model="m", now=0.0, n_tokens=160)
IDLE, MIXED, CPU_ONLY = "idle", "mixed", "cpu-only"
FLEET = [
    endpoint(IDLE, of=load(waiting=0, kv=0.2), prefix=held()),
    endpoint(MIXED, of=load(waiting=4, kv=0.4), prefix=held(gpu=5, cpu=8)),
    endpoint(CPU_ONLY, of=load(waiting=2, kv=0.8), prefix=held(cpu=10)),
]
# queue scores 1, 0, 0.5; utilization scores 0.8, 0.6, 0.2


@pytest.mark.parametrize(
    ("file", "totals", "picked"),
    [
        pytest.param(
            "default.yaml",
            [2 * 1 + 2 * 0.8, 2 * 0.6 + 0.5 + 0.8, 2 * 0.5 + 2 * 0.2 + 1],
            IDLE,
            id="default",
        ),
        pytest.param(
            "tiered-v0.4.yaml",
            [2 * 1 + 2 * 0.8, 2 * 0.6 + 0.5 + 0.8, 2 * 0.5 + 2 * 0.2 + 1],
            IDLE,
            id="tiered_as_published",
        ),
        pytest.param(
            "tiered-v1.yaml",
            [1 + 0.8 + 0.5, 0.6 + 0.5 + 0.8 + 0.5, 0.5 + 0.2 + 1 + 0.5],
            MIXED,
            id="tiered_present_form",
        ),
        pytest.param(
            "precise.yaml",
            [
                2 * 0.8 + 2 * 1 + 2 * 0.5,
                2 * 0.6 + 3 * (5 + 3 * 0.8) / 10 + 2 * 0.5,
                2 * 0.2 + 2 * 0.5 + 3 * 0.8 + 2 * 0.5,
            ],
            CPU_ONLY,
            id="precise",
        ),
        pytest.param("sidecar.yaml", [0, (5 + 3 * 0.8) / 10, 0.8], CPU_ONLY, id="sidecar"),
        pytest.param(
            "demo.yaml",
            [2 * 1 + 2 * 0.8, 2 * 0.6 + 0.5 + 0.8, 2 * 0.5 + 2 * 0.2 + 1],
            IDLE,
            id="demo",
        ),
    ],
)
def test_shipped_file_decides_as_its_weights_say(file: str, totals: list[float], picked: str) -> None:
    profile = make_plan(load_scheduled(FOLDER / file).config).profile

    decision = decide(profile, REQUEST, FLEET, rng=no_chance)

    assert [each.total for each in decision.scored] == pytest.approx(totals)
    assert (decision.picked, decision.faults) == ((picked,), ())


def test_cold_requests_go_round_with_the_present_tiered_form() -> None:
    profile = make_plan(load_scheduled(FOLDER / "tiered-v1.yaml").config).profile
    fleet = [endpoint(name, of=load(), prefix=held()) for name in "abc"]

    picked: list[str] = []
    for _ in range(6):
        decision = decide(profile, REQUEST, fleet, rng=no_chance)
        profile.picked(REQUEST, decision)
        picked += decision.picked

    assert picked == ["a", "b", "c", "a", "b", "c"]


@pytest.mark.parametrize(
    ("file", "tiers"),
    [
        pytest.param(
            "tiered-v0.4.yaml",
            [("gpu", "routing", "auto"), ("cpu", "inferred", 41000)],
            id="tiered_as_published",
        ),
        pytest.param(
            "tiered-v1.yaml",
            [("gpu", "routing", "auto"), ("cpu", "inferred", 82000)],
            id="tiered_present_form",
        ),
        pytest.param("precise.yaml", [("gpu", "events", "auto"), ("cpu", "events", "auto")], id="precise"),
        pytest.param("sidecar.yaml", [("gpu", "auto", "auto"), ("cpu", "auto", "auto")], id="sidecar"),
    ],
)
def test_shipped_file_knows_its_tiers_from_where_it_says(
    file: str, tiers: list[tuple[str, str, object]]
) -> None:
    config = make_plan(load_scheduled(FOLDER / file).config).config

    assert [(each.name, each.source, each.lru_capacity_per_server) for each in config.tiers[:2]] == tiers


def test_precise_file_says_where_events_come_from() -> None:
    events = make_plan(load_scheduled(FOLDER / "precise.yaml").config).config.events

    assert (events.mode, events.port, events.topic_prefix) == ("connect", 5556, "kv@")


def test_committed_schema_is_that_of_the_types() -> None:
    assert (FOLDER / "schema.json").read_text() == json_schema(), "run `make schema`"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_shipped_file_fits_the_schema(file: Path) -> None:
    jsonschema.validate(yaml.safe_load(file.read_text()), SCHEMA)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("{kind: KVAtlasConfig, apiVersion: kvatlas/v1, servr: {}}", id="unknown_key"),
        pytest.param("{kind: KVAtlasConfig, apiVersion: kvatlas/v2}", id="version"),
        pytest.param("{kind: KVAtlasConfig, apiVersion: kvatlas/v1, weights: {queue: -1}}", id="limit"),
        pytest.param(
            "{kind: EndpointPickerConfig, apiVersion: llm-d.ai/v1, plugins: [{type: load-aware-scorer, "
            "parameters: {treshold: 1}}]}",
            id="parameter",
        ),
        pytest.param("{kind: EndpointPickerConfig, apiVersion: llm-d.ai/v1, plugins: [{}]}", id="missing"),
    ],
)
def test_schema_refuses_what_the_loader_refuses(text: str) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(yaml.safe_load(text), SCHEMA)


def test_schema_lets_plugins_of_other_packages_through() -> None:
    text = (
        "{kind: KVAtlasConfig, apiVersion: kvatlas/v1, plugins: [{type: zone-scorer, parameters: {zone: a}}]}"
    )

    jsonschema.validate(yaml.safe_load(text), SCHEMA)


@pytest.mark.parametrize(
    ("shipped", "more"),
    [
        ("latency.yaml", ""),
        ("latency-stages.yaml", "disaggregation: {uncachedTokens: 1, missingStage: skip}\n"),
    ],
)
def test_latency_file_is_the_policy(shipped: str, more: str, tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(f"apiVersion: kvatlas/v1\nkind: KVAtlasConfig\npolicy: latency\n{more}")
    plans = [make_plan(load_scheduled(file).config) for file in (own, FOLDER / shipped)]

    one, other = ((each.config.plugins, each.config.scheduling_profiles) for each in plans)
    assert one == other
    assert plans[0].references == plans[1].references


FOREIGN = (
    "# yaml-language-server:",
    "- {name: vllm-0,",
    "endpoints:\n  - {name",  # a list of endpoints, in both forms
    "kv_events_config:",
    "networkPolicy:",
    "rules:",
    "plugins:\n  - type: zone-scorer",  # of another package
)
"""Beginnings of examples that are no configurations."""

EXAMPLES = [
    pytest.param(path, text, id=f"{path.stem}-{number}")
    for path in tracked_files()
    if path.suffix == ".md" and (path.parts[0] == "docs" or path == Path("README.md"))
    for number, text in enumerate(
        re.findall(r"```yaml\n(.*?)```", (ROOT / path).read_text(), flags=re.DOTALL)
    )
    if not text.startswith(FOREIGN)
]


@pytest.mark.parametrize(("path", "text"), EXAMPLES)
def test_example_of_the_documentation_is_a_valid_configuration(path: Path, text: str, tmp_path: Path) -> None:
    file = tmp_path / "example.yaml"
    head = "" if "apiVersion" in text else "apiVersion: kvatlas/v1\nkind: KVAtlasConfig\n"
    file.write_text(head + text)

    types = {plugin.type for plugin in load_scheduled(file).config.plugins}

    assert path.stem in types or path.parts[:2] != ("docs", "scorers") or not types, (
        "a scorer's example shows the scorer"
    )
