"""`kvatlas demo`: options that cannot be used are refused before anything starts."""

from __future__ import annotations

import re
from typing import NoReturn

import pytest
from typer.testing import CliRunner

from kvatlas.app.cli.main import app


@pytest.fixture(autouse=True)
def never_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> NoReturn:
        raise AssertionError("a demo was started")

    monkeypatch.setattr("kvatlas.sim.demo.run_demo", fail)
    monkeypatch.setattr("kvatlas.sim.compare.command.find_envoy", fail)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        pytest.param("new.yaml --plot x.svg", "FILE and --plot need --compare", id="file_and_plot"),
        pytest.param("--picker epp", "--picker needs --compare", id="picker"),
        pytest.param("--json", "--json needs --compare", id="json"),
        pytest.param("--rate 2.6", "--rate needs --compare", id="rate_even_if_the_default_is_given"),
        pytest.param("--seconds 5", "--seconds needs --compare", id="seconds"),
        pytest.param("--servers 2", "--servers needs --compare", id="servers"),
        pytest.param("--repeats 2 --seed 4", "--repeats needs --compare", id="repeats"),
        pytest.param("--time-scale 2 --keep", "--time-scale needs --compare", id="time_scale"),
        pytest.param(
            "--rate 3 --seconds 5 --servers 2",
            "--rate, --seconds and --servers need --compare",
            id="several_at_once",
        ),
        pytest.param("--compare --seconds inf", "Invalid value for '--seconds'", id="endless"),
        pytest.param("--compare --seconds nan", "Invalid value for '--seconds'", id="no_time"),
        pytest.param(
            "--compare --time-scale inf", "Invalid value for '--time-scale'", id="time_stands_still"
        ),
        pytest.param("--compare --time-scale nan", "Invalid value for '--time-scale'", id="no_scale"),
        pytest.param(
            "--compare --rate 1,1e9",
            "--rate 1e+09 with --seconds 60: 60000000000 chats in a run, expected at most 100000; lower one of them",
            id="rate",
        ),
        pytest.param(
            "--compare --rate 10 --seconds 36000",
            "--rate 10 with --seconds 36000: 360000 chats in a run",
            id="both_together",
        ),
    ],
)
def test_options_that_cannot_be_used_are_refused(line: str, message: str) -> None:
    result = CliRunner().invoke(app, ["demo", *line.split()])

    assert result.exit_code == 2, result.output
    assert message in re.sub(r"[\s│]+", " ", result.stderr)
