"""Level and form of the log, by our flag and the reference's."""

from __future__ import annotations

import json
import logging

import pytest
import typer

from kvatlas.app.cli.log import LogOptions, log_options


@pytest.mark.parametrize(
    ("level", "given", "expected"),
    [
        pytest.param(None, {}, LogOptions(), id="default"),
        pytest.param(None, {"v": "3"}, LogOptions(), id="verbose"),
        pytest.param(None, {"v": "5"}, LogOptions(logging.DEBUG), id="trace"),
        pytest.param(None, {"v": "5", "zap-log-level": "error"}, LogOptions(logging.ERROR), id="zap_level"),
        pytest.param(None, {"zap-log-level": "4"}, LogOptions(logging.DEBUG), id="zap_number"),
        pytest.param("warning", {"v": "5"}, LogOptions(logging.WARNING), id="ours_first"),
        pytest.param(None, {"zap-encoder": "json"}, LogOptions(is_json=True), id="json"),
        pytest.param(None, {"zap-devel": "false"}, LogOptions(is_json=True), id="production"),
        pytest.param(None, {"zap-devel": "false", "zap-encoder": "console"}, LogOptions(), id="text"),
        pytest.param(None, {"zap-time-encoding": "nano"}, LogOptions(time="nano"), id="time"),
    ],
)
def test_flags_select_the_log(level: str | None, given: dict[str, str], expected: LogOptions) -> None:
    assert log_options(level, given) == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        pytest.param({"v": "high"}, "--v: found 'high', expected a whole number", id="verbosity"),
        pytest.param({"zap-log-level": "loud"}, "--zap-log-level: found 'loud'", id="level"),
        pytest.param({"zap-encoder": "xml"}, "--zap-encoder: found 'xml', expected json or", id="encoder"),
        pytest.param({"zap-devel": "x"}, "--zap-devel: found 'x', expected true or false", id="devel"),
        pytest.param({"zap-time-encoding": "x"}, "--zap-time-encoding: found 'x'", id="time"),
    ],
)
def test_unusable_value_ends_the_command(
    given: dict[str, str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit):
        log_options(None, given)
    assert message in capsys.readouterr().err


def test_json_line_has_the_members_of_the_reference(capsys: pytest.CaptureFixture[str]) -> None:
    LogOptions(is_json=True, time="rfc3339").start(worker=2)
    logging.getLogger("kvatlas.x").warning('said "%s"', "ü")

    line = json.loads(capsys.readouterr().err)
    assert line.pop("ts").endswith("Z")
    assert line == {"level": "warn", "logger": "kvatlas.x", "worker": 2, "msg": 'said "ü"'}


def test_text_line_has_the_time_in_the_chosen_form(capsys: pytest.CaptureFixture[str]) -> None:
    LogOptions(time="nano").start()
    logging.getLogger("kvatlas.x").info("said")

    time, rest = capsys.readouterr().err.split(" ", 1)
    assert time.isdecimal()
    assert rest == "INFO    kvatlas.x: said\n"


def test_error_in_a_json_line_has_its_trace(capsys: pytest.CaptureFixture[str]) -> None:
    LogOptions(is_json=True).start()
    try:
        dict[str, int]()["gone"]
    except KeyError:
        logging.getLogger("kvatlas.x").exception("failed")

    assert "KeyError: 'gone'" in json.loads(capsys.readouterr().err)["stacktrace"]
