"""Plugins of other packages in a running `kvatlas serve`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.plugins import install_faulty
from support.serve import serving
from support.tree import ROOT

EXAMPLE = ROOT / "docs" / "examples" / "zone_scorer"
FLEET = {
    "static": [
        {
            "name": zone,
            "address": f"127.0.0.1:{port}",
            "labels": {"zone": zone},
            "events": "",
            "metrics": "",
        }
        for port, zone in enumerate("abc", start=1)
    ]
}


def profile(*types: str, **parameters: Any) -> dict[str, Any]:
    return {
        "endpoints": FLEET,
        "plugins": [
            {"type": each, "parameters": parameters.get(each.replace("-", "_"), {})} for each in types
        ],
    }


@pytest.fixture
def example_package(tmp_path: Path) -> Path:
    """Install the example with pip, without network; return the folder."""
    source, target = tmp_path / "source", tmp_path / "site"
    shutil.copytree(EXAMPLE, source)  # the build writes files
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index")
    how = ("--no-deps", "--no-build-isolation", "--target", str(target))
    subprocess.run([*pip, *how, str(source)], check=True, capture_output=True)
    return target


@pytest.mark.slow
async def test_example_package_is_installed_and_decides(example_package: Path, tmp_path: Path) -> None:
    config = profile("zone-scorer", zone_scorer={"zone": "b"})

    async with serving(config, tmp_path, environment={"PYTHONPATH": str(example_package)}) as served:
        answer = await served.post("/v1/score", {"model": "m", "token_ids": [1, 2, 3]})

    assert answer["picked"] == ["b"]
    assert [(each["name"], each["scores"][0]["type"], each["total"]) for each in answer["endpoints"]] == [
        ("a", "zone-scorer", 0.0),
        ("b", "zone-scorer", 1.0),
        ("c", "zone-scorer", 0.0),
    ]
    assert answer["faults"] == []


@pytest.mark.slow
async def test_faulty_plugins_are_named_counted_and_cost_no_request(
    tmp_path: Path,
) -> None:
    install_faulty(tmp_path / "site")
    config = profile("broken", "not-finite", "raises", "active-request-scorer", "nobody")

    async with serving(config, tmp_path, environment={"PYTHONPATH": str(tmp_path / "site")}) as served:
        answer = await served.post("/v1/score", {"model": "m", "token_ids": [1, 2, 3]})

    assert answer["picked"] == ["b"]
    assert [(fault["name"], fault["reason"]) for fault in answer["faults"]] == [
        ("broken", "wrong_length"),
        ("not-finite", "not_finite"),
        ("raises", "raised"),
        ("nobody", "wrong_answer"),
    ]
    assert "LookupError: no such zone (faulty_plugins.py:" in answer["faults"][2]["detail"]
    assert [[term["score"] for term in each["scores"]] for each in answer["endpoints"]] == [
        [0.0, 0.0, 1.0],
        [1.0, 0.0, 1.0],
        [0.5, 0.0, 1.0],
    ]
    assert answer["endpoints"][0]["scores"][0]["raw"] is None, "JSON has no infinity"
