from __future__ import annotations

import io

import pytest
from rich.console import Console

from kvatlas.api.rest.recorder import NOT_RECORDING
from kvatlas.api.rest.recorder_models import RecorderOut
from kvatlas.app.cli.reports.recorder import print_recorder

GOOD = RecorderOut(
    folder="/traces",
    file=None,
    bytes=2**20,
    requests={"recorded": 0, "cut": 0},
    unknown_outputs=0,
    waiting=0,
    failure=None,
)
FULL = GOOD.model_copy(
    update={
        "file": "requests-1.jsonl",
        "requests": {"recorded": 12, "cut": 1},
        "unknown_outputs": 3,
        "waiting": 2,
        "failure": "[Errno 28] No space left on device",
    }
)


@pytest.mark.parametrize(
    ("found", "lines"),
    [
        pytest.param(
            NOT_RECORDING, ["nothing is recorded; recorder.folder names where to"], id="not_recording"
        ),
        pytest.param(GOOD, ["/traces: 1.0 MiB, no file yet"], id="nothing_yet"),
        pytest.param(
            FULL,
            [
                "/traces: 1.0 MiB, requests-1.jsonl",
                "       12 requests recorded",
                "        1 requests of which only the first token ids are known",
                "        3 of the recorded without output length",
                "        2 requests wait to be written",
                "the last write failed: [Errno 28] No space left on device",
            ],
            id="everything",
        ),
    ],
)
def test_report_has_a_line_for_each_state(found: RecorderOut, lines: list[str]) -> None:
    out = io.StringIO()
    print_recorder(Console(file=out, width=100), found)

    assert out.getvalue().splitlines() == lines
