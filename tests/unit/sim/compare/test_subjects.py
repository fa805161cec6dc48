"""What is compared, by name or file, and what is refused before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from rich.console import Console

from kvatlas.configs.errors import ConfigError
from kvatlas.sim.compare.command import CompareOptions, run_compare
from kvatlas.sim.compare.subjects import subjects_of
from kvatlas.sim.errors import CompareError, OutputError
from kvatlas.sim.picker_process import picker_arguments, with_file_discovery

OWN = """
apiVersion: kvatlas/v1
kind: KVAtlasConfig
weights: {queue: 3}
scoring: {wholeBlocks: true}
endpoints: {static: [{name: a, address: "10.0.0.1:8000"}]}
"""
REFERENCE = """
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins: [{type: queue-scorer}, {type: file-discovery, parameters: {path: mine.yaml}}]
dataLayer: {discovery: {pluginRef: file-discovery}}
"""
PICKER = "epp --port {port} --config {config}"


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    texts = {"own": OWN, "theirs": REFERENCE, "broken": OWN.replace("queue: 3", "queue: -3")}
    for name, text in texts.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    (tmp_path / "mine.yaml").write_text("endpoints: []")
    return {name: str(tmp_path / f"{name}.yaml") for name in texts}


def test_names_and_files_are_compared_in_order(files: dict[str, str]) -> None:
    found = subjects_of(["round-robin", "latency", files["own"], files["theirs"]], command=PICKER)

    assert [subject.name for subject in found] == [
        "round-robin",
        "latency",
        "own",
        "theirs",
        "theirs (other)",
    ]
    assert [subject.command for subject in found] == ["", "", "", "", PICKER]
    assert found[1].sections == {"policy": "latency"}
    assert found[3].file == found[4].file == Path(files["theirs"])


def test_own_file_gives_what_decides_and_not_its_servers(files: dict[str, str]) -> None:
    (own,) = subjects_of([files["own"]])

    assert own.sections["weights"]["queue"] == 3
    assert own.sections["scoring"] == {"wholeBlocks": True}
    assert "endpoints" not in own.sections


@pytest.mark.parametrize(
    ("names", "command", "problem"),
    [
        pytest.param(["nothing.yaml"], "", "found 'nothing.yaml', want a configuration file, or one of", id="no_file"),
        pytest.param(["latency", "latency"], "", "found 'latency' twice", id="twice"),
        pytest.param(["latency"], PICKER, "no EndpointPickerConfig is compared", id="nothing_for_the_picker"),
        pytest.param(["latency"], "epp --config {config}", r"has no \{port\}", id="no_port"),
        pytest.param(["latency"], "epp '{port}", "cannot be split: No closing quotation", id="quote"),
    ],
)  # fmt: skip
def test_impossible_comparison_is_refused(names: list[str], command: str, problem: str) -> None:
    with pytest.raises(CompareError, match=problem):
        subjects_of(names, command=command)


def test_broken_file_is_refused_with_its_line(files: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"line 4, weights.queue: found -3"):
        subjects_of([files["broken"]])


def test_command_is_split_as_by_a_shell() -> None:
    assert picker_arguments("env A='x y' epp {port}") == ["env", "A=x y", "epp", "{port}"]


def test_configuration_of_another_picker_finds_the_simulated_servers() -> None:
    found = yaml.safe_load(with_file_discovery(REFERENCE, Path("/x/endpoints.yaml")))

    assert [plugin["type"] for plugin in found["plugins"]] == ["queue-scorer", "file-discovery"]
    assert found["plugins"][1]["parameters"] == {"path": "/x/endpoints.yaml", "watchFile": False}
    assert found["dataLayer"] == {"discovery": {"pluginRef": "file-discovery"}}


def test_picture_that_cannot_be_written_is_refused_before_anything_runs(tmp_path: Path) -> None:
    options = CompareOptions(names=["latency"], plot=tmp_path)

    with pytest.raises(OutputError, match=r"--plot: .* cannot be written: Is a directory"):
        run_compare(Console(), options)
