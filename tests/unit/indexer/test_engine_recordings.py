"""Recordings of vLLM 0.33 and SGLang 0.5.23: the index predicts what the engine itself reported as cached."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from kvatlas.indexer.factory import REFERENCE, IndexCore, index_core
from support.engine_page import DROPPING
from support.engine_recordings import SGLANG, VLLM, Replay

CASES = [case for engine in (VLLM, SGLANG) for case in sorted(engine.iterdir()) if case.is_dir()]

UNKNOWABLE = {"r1_reset": 9}
"""Case -> requests that no event tells: resets without one."""


@pytest.fixture(params=[REFERENCE, index_core()], ids=lambda core: core.name)
def core(request: pytest.FixtureRequest) -> IndexCore:
    return cast("IndexCore", request.param)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_predicted_tokens_equal_the_engines_own(core: IndexCore, case: Path) -> None:
    replay = Replay(case, core, dropped=1 if case.name in DROPPING else None)
    assert len(replay.wrong) <= UNKNOWABLE.get(case.name, 0), f"of {replay.n_requests}: {replay.wrong}"
