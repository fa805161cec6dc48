"""Recordings of the reference picker, as their files have them; the README beside the files gives the format."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from support.tree import ROOT

PLUGINS = ROOT / "tests" / "golden" / "picker" / "plugins"
DISAGGREGATION = PLUGINS.with_name("disaggregation")

Json = dict[str, Any]
"""A part of a recording; its keys are those of the README."""


@dataclass(frozen=True)
class Recording:
    """One case.

    Attributes:
        folder: of its file, to which `config` is relative.
        data: the line of the file.
    """

    folder: Path
    data: Json

    @property
    def name(self) -> str:
        """GROUP/NAME."""
        name: str = self.data["case"]
        return name

    @property
    def group(self) -> str:
        return self.name.partition("/")[0]

    @property
    def flags(self) -> Sequence[str]:
        flags: list[str] = self.data.get("flags", [])
        return flags

    @property
    def endpoints(self) -> Sequence[Json]:
        endpoints: list[Json] = self.data["endpoints"]
        return endpoints

    @property
    def metrics(self) -> Mapping[str, Json | None]:
        metrics: dict[str, Json | None] = self.data["metrics"]
        return metrics

    @property
    def steps(self) -> Sequence[Json]:
        steps: list[Json] = self.data["steps"]
        return steps

    @property
    def refused(self) -> str | None:
        """Why the reference does not start, None if it does."""
        error: str | None = self.data.get("startup_error")
        return error

    @property
    def start(self) -> str:
        """Text that is equal for recordings which start the picker in the same way."""
        return json.dumps([self.data["config"], self.flags, self.endpoints], sort_keys=True)

    @property
    def has_events(self) -> bool:
        """Return whether servers publish KV events."""
        return any("events" in step for step in self.steps)

    def config_text(self) -> str:
        text: str = self.folder.joinpath(self.data["config"]).read_text(encoding="utf-8")
        return text


def groups(folder: Path = PLUGINS) -> list[str]:
    """List the groups of a folder."""
    return sorted(path.stem for path in folder.glob("*.jsonl"))


@cache
def read_group(group: str, folder: Path = PLUGINS) -> tuple[Recording, ...]:
    """Return the recordings of a group, in their order."""
    return tuple(_read(folder, folder / f"{group}.jsonl"))


@dataclass(frozen=True)
class Known:
    """Cases of a group in which kvatlas differs from the reference -> the reason.

    Attributes:
        deliberate: what stays.
        sometimes: the same, but by time or chance the answer may be the recorded one.
        open: what is still wrong.
    """

    deliberate: Mapping[str, str]
    sometimes: Mapping[str, str]
    open: Mapping[str, str]

    @property
    def always(self) -> Mapping[str, str]:
        """The cases that must differ."""
        return {**self.deliberate, **self.open}

    @property
    def all(self) -> Mapping[str, str]:
        return {**self.always, **self.sometimes}


def known_differences(group: str, folder: Path = PLUGINS) -> Known:
    """Return what the file of the group in `known` says, nothing without one."""
    file = folder / "known" / f"{group}.toml"
    sections: dict[str, dict[str, str]] = tomllib.loads(file.read_text()) if file.exists() else {}
    names = ("deliberate", "sometimes", "open")
    assert sections.keys() <= set(names), file
    return Known(
        *({f"{group}/{case}": reason for case, reason in sections.get(name, {}).items()} for name in names)
    )


def _read(folder: Path, file: Path) -> Iterator[Recording]:
    for line in file.read_text(encoding="utf-8").splitlines():
        yield Recording(folder, json.loads(line))
