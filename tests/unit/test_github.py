"""Files that GitHub reads: workflows, templates, and the notes of a release."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.tree import ROOT, read

GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
RELEASE_NOTES = ROOT / "scripts" / "release_notes.py"
PYPROJECT = '[project]\nversion = "1.2.3"\n'


def run_tool(name: str, *arguments: str | Path) -> tuple[int, str]:
    """Run a program of the virtual environment; return its status and output."""
    command = [Path(sys.executable).with_name(name), *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("schema", "pattern"),
    [
        ("github-workflows", "workflows/*.yml"),
        ("github-issue-forms", "ISSUE_TEMPLATE/[!c]*.yml"),
        ("github-issue-config", "ISSUE_TEMPLATE/config.yml"),
        ("dependabot", "dependabot.yml"),
    ],
)
def test_file_has_the_form_that_github_reads(schema: str, pattern: str) -> None:
    files = sorted(GITHUB.glob(pattern))
    assert files
    status, output = run_tool("check-jsonschema", "--builtin-schema", f"vendor.{schema}", *files)
    assert status == 0, output


def test_linter_finds_nothing_in_the_workflows() -> None:
    status, output = run_tool("zizmor", "--offline", "--no-progress", "--quiet", GITHUB)
    assert status == 0, output


def used(workflow: dict[str, Any]) -> list[str]:
    """Return the actions and workflows that a workflow uses."""
    jobs = workflow["jobs"].values()
    steps = [step for job in jobs for step in job.get("steps", ())]
    return [each["uses"] for each in (*jobs, *steps) if "uses" in each]


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_workflow_pins_actions_and_names_files_that_exist(file: Path) -> None:
    workflow = yaml.safe_load(file.read_text())
    for name in used(workflow):
        if name.startswith("./"):
            assert (ROOT / name).is_file()
        else:
            assert re.fullmatch(r"[\w-]+/[\w-]+@v\d+\.\d+\.\d+", name)
    named = re.findall(r"(?<![\w/])(?:scripts|\.ci)/[\w.]+", file.read_text())
    assert [name for name in named if not (ROOT / name).is_file()] == []


def test_ci_runs_what_a_commit_must_pass() -> None:
    jobs = yaml.safe_load(read(Path(".github/workflows/ci.yml")))["jobs"]
    assert ".ci/run" in [step.get("run") for step in jobs["check"]["steps"]]


def release_notes(folder: Path, changelog: str, tag: str = "v1.2.3") -> tuple[int, str]:
    """Run the script on a repository of these files; return its status and output."""
    script = folder / "scripts" / RELEASE_NOTES.name
    script.parent.mkdir()
    script.write_text(RELEASE_NOTES.read_text())
    (folder / "CHANGELOG.md").write_text(changelog)
    (folder / "pyproject.toml").write_text(PYPROJECT)
    done = subprocess.run([sys.executable, script, tag], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


BODY = "### Added\n\n- A thing, see [the page](https://example.com).\n"


@pytest.mark.parametrize(
    "heading", ["## [1.2.3] - 2026-01-31", "## [1.2.3]", "## 1.2.3 - 2026-01-31", "## 1.2.3"]
)
def test_notes_are_the_section_of_the_version(heading: str, tmp_path: Path) -> None:
    older = "## [1.2.2] - 2025-12-31\n\n- Older.\n\n[1.2.3]: https://example.com/1.2.3\n"
    changelog = f"# Changelog\n\nAll.\n\n## [Unreleased]\n\n{heading}\n\n{BODY}\n{older}"
    assert release_notes(tmp_path, changelog) == (0, BODY)


def test_notes_of_the_last_section_are_without_link_definitions(tmp_path: Path) -> None:
    changelog = f"# Changelog\n\n## [1.2.3]\n\n{BODY}\n[1.2.3]: https://example.com/1.2.3\n"
    assert release_notes(tmp_path, changelog) == (0, BODY)


@pytest.mark.parametrize(
    ("changelog", "tag", "words"),
    [
        pytest.param("## [1.2.30]\n\n- A.\n", "v1.2.3", "no section `## [1.2.3]", id="no_section"),
        pytest.param("## [1.2.3]\n\n## [1.2.2]\n\n- A.\n", "v1.2.3", "1.2.3 of the changelog is empty", id="empty"),
        pytest.param("## [1.2.4]\n\n- A.\n", "v1.2.4", "pyproject.toml has version 1.2.3", id="other_version"),
        pytest.param("## [1.2.3]\n\n- A.\n", "1.2.3", "want v1.2.3", id="no_v"),
    ],
)  # fmt: skip
def test_release_without_notes_fails(changelog: str, tag: str, words: str, tmp_path: Path) -> None:
    status, output = release_notes(tmp_path, changelog, tag)
    assert status == 1
    assert words in output
    assert "Traceback" not in output
