"""The log of the server: level, and form of its lines."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from .exit_status import fail
from .go_values import switch, whole_number

T = TypeVar("T")

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
"""Values of `--log-level`."""

DEBUG_VERBOSITY = 4
"""Verbosity from which the reference logs what helps to find bugs."""


def _iso(seconds: float, timespec: str) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec=timespec).replace("+00:00", "Z")


_TIMES: Mapping[str, Callable[[float], object]] = {
    "epoch": lambda seconds: seconds,
    "millis": lambda seconds: seconds * 1e3,
    "nano": lambda seconds: int(seconds * 1e9),
    "iso8601": lambda seconds: _iso(seconds, "milliseconds"),
    "rfc3339": lambda seconds: _iso(seconds, "seconds"),
    "rfc3339nano": lambda seconds: _iso(seconds, "microseconds"),
}
"""Names of the reference for forms of times -> seconds of the wall clock in that form."""


@dataclass(frozen=True, slots=True)
class LogOptions:
    """Level and form of the log.

    Attributes:
        level: value of `logging`.
        is_json: whether each line is a JSON object, with the members `level`, `ts`, `logger` and `msg`.
        time: form of times, empty for the usual one.
    """

    level: int = logging.INFO
    is_json: bool = False
    time: str = ""

    def start(self, *, worker: int | None = None) -> None:
        """Log to standard error from now on.

        Args:
            worker: number of this process among several; None if it is the only one.
        """
        # it logs every start and stop, and warns of every connection that is no HTTP, which are counted
        logging.getLogger("uvicorn").setLevel(logging.ERROR)
        handler = logging.StreamHandler()
        handler.setFormatter(_JsonLines(self.time, worker) if self.is_json else _TextLines(self.time, worker))
        logging.basicConfig(level=self.level, handlers=[handler], force=True)


class _TextLines(logging.Formatter):
    def __init__(self, time: str, worker: int | None) -> None:
        who = "" if worker is None else f"worker {worker} "
        super().__init__(f"%(asctime)s {who}%(levelname)-7s %(name)s: %(message)s")
        self._time = _TIMES[time] if time else None

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802 - overrides
        """Return the time of a record."""
        return super().formatTime(record, datefmt) if self._time is None else str(self._time(record.created))


class _JsonLines(logging.Formatter):
    def __init__(self, time: str, worker: int | None) -> None:
        super().__init__()
        self._time = _TIMES[time or "epoch"]
        self._more = {} if worker is None else {"worker": worker}

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as one line."""
        line = {
            "level": "warn" if record.levelno == logging.WARNING else record.levelname.lower(),
            "ts": self._time(record.created),
            "logger": record.name,
            **self._more,
            "msg": record.getMessage(),
        }
        if record.exc_info:
            line["stacktrace"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def log_options(level: str | None, given: Mapping[str, str]) -> LogOptions:
    """Return the log that flags ask for; a value that cannot be used ends the command.

    Args:
        level: of `--log-level`, which goes before the reference's; None if it was not given.
        given: the reference's flags, as in `ReferenceFlags`.
    """
    chosen = logging.INFO
    for name, read in (("v", _verbosity), ("zap-log-level", _zap_level)):
        if name in given:
            chosen = _read(f"--{name}", read, given[name])
    if level is not None:
        if level.lower() not in LEVELS:
            fail(f"--log-level is {level!r}, want one of {', '.join(LEVELS)}")
        chosen = LEVELS[level.lower()]
    is_json = "zap-devel" in given and not _read("--zap-devel", switch, given["zap-devel"])
    if "zap-encoder" in given:
        is_json = _read("--zap-encoder", _encoder, given["zap-encoder"])
    time = _read("--zap-time-encoding", _time_form, given.get("zap-time-encoding", ""))
    return LogOptions(chosen, is_json, time)


def _read(flag: str, read: Callable[[str], T], text: str) -> T:
    try:
        return read(text)
    except ValueError as error:
        fail(f"{flag}: {error}")


def _verbosity(text: str) -> int:
    return logging.DEBUG if whole_number(text) >= DEBUG_VERBOSITY else logging.INFO


def _zap_level(text: str) -> int:
    if text.isdecimal():
        return _verbosity(text)
    levels = {"debug": logging.DEBUG, "info": logging.INFO, "error": logging.ERROR, "panic": logging.CRITICAL}
    if text not in levels:
        raise ValueError(f"found {text!r}, expected {', '.join(levels)} or a whole number")
    return levels[text]


def _encoder(text: str) -> bool:
    if text not in ("json", "console"):
        raise ValueError(f"found {text!r}, expected json or console")
    return text == "json"


def _time_form(text: str) -> str:
    if text and text not in _TIMES:
        raise ValueError(f"found {text!r}, expected one of {', '.join(_TIMES)}")
    return text
