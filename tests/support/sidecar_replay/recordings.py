"""Recordings of the reference sidecar, as their files have them; the README beside the files gives the format."""

from __future__ import annotations

import fnmatch
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from support.tree import ROOT

FOLDER = ROOT / "tests" / "golden" / "sidecar"

Json = dict[str, Any]


@dataclass(frozen=True)
class Recording:
    """One case.

    Attributes:
        data: the line of its file.
    """

    data: Json

    @property
    def name(self) -> str:
        """GROUP/NAME."""
        name: str = self.data["case"]
        return name

    @property
    def flags(self) -> Sequence[str]:
        flags: list[str] = self.data.get("flags", [])
        return flags

    @property
    def environment(self) -> Mapping[str, str]:
        environment: dict[str, str] = self.data.get("env", {})
        return environment

    @property
    def listener(self) -> str:
        """Placeholder of the port that the client uses."""
        listener: str = self.data.get("listener", "{SIDECAR}")
        return listener

    @property
    def requests(self) -> Sequence[Json]:
        """The requests of the client, one after the other."""
        client: Json | list[Json] = self.data["client"]
        if isinstance(client, dict):
            return [client] * int(client.get("times", 1))
        return client

    @property
    def answers(self) -> Sequence[Json]:
        """The answers to `requests`."""
        answer: Json | list[Json] = self.data["answer"]
        return [answer] * len(self.requests) if isinstance(answer, dict) else answer

    @property
    def legs(self) -> Sequence[Json]:
        legs: list[Json] = self.data["legs"]
        return legs


@dataclass(frozen=True)
class Known:
    """Cases that are not as recorded -> the reason.

    Attributes:
        left_out: not replayed; patterns of names, or beginnings of flags.
        deliberate: replayed, and different.
    """

    left_out: Mapping[str, str]
    deliberate: Mapping[str, str]

    def reason_to_leave_out(self, case: Recording) -> str | None:
        """Return why a case is not replayed, None if it is."""
        for name, reason in self.left_out.items():
            if any(flag.startswith(name) for flag in case.flags) or fnmatch.fnmatchcase(case.name, name):
                return reason
        return None


def groups() -> list[str]:
    """List the groups."""
    return sorted(path.stem for path in FOLDER.glob("*.jsonl"))


@cache
def read_group(group: str) -> tuple[Recording, ...]:
    """Return the recordings of a group, in their order."""
    text = (FOLDER / f"{group}.jsonl").read_text(encoding="utf-8")
    return tuple(Recording(json.loads(line)) for line in text.split("\n") if line)


@cache
def known_differences() -> Known:
    """Return what `known.toml` says."""
    sections = tomllib.loads((FOLDER / "known.toml").read_text())
    return Known(sections["left-out"], sections["deliberate"])


def here(value: Any, ports: Mapping[str, int]) -> Any:
    """Return a part of a recording with this run's ports in place of `{DECODE}` and the like."""
    text = json.dumps(value)
    for name, port in ports.items():
        text = text.replace(f"{{{name}}}", str(port))
    return json.loads(text)
