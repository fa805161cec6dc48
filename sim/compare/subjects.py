"""What is compared: named policies and configuration files, each with kvatlas or with another picker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...configs.plain import plain
from ...configs.schema import KVAtlasConfig
from ...routing.plan.load import load_scheduled
from ..errors import CompareError
from ..picker_process import picker_arguments
from ..stack import Site, Stack, round_robin, with_kvatlas, with_picker

ROUND_ROBIN = "round-robin"
NAMED: dict[str, dict[str, object]] = {
    ROUND_ROBIN: {},
    "random": {"plugins": [{"type": "random-picker"}]},
    "weights": {"policy": "weights"},
    "latency": {"policy": "latency"},
}
"""Name -> the sections of a KVAtlasConfig; `round-robin` is Envoy without a picker."""

DECIDING_KEYS = (
    "policy", "weights", "plugins", "schedulingProfiles", "approximate", "scoring", "predictions", "audit",
)  # fmt: skip
"""Keys of a KVAtlasConfig that are compared; all others are those of the simulated servers."""


@dataclass(frozen=True, slots=True)
class Subject:
    """One row of the comparison.

    Attributes:
        name: in tables and plots.
        sections: deciding sections of a KVAtlasConfig.
        file: an EndpointPickerConfig; None for sections alone.
        command: command line of another picker, which gets the file; empty for kvatlas.
    """

    name: str
    sections: dict[str, Any] = field(default_factory=dict[str, Any])
    file: Path | None = None
    command: str = ""

    def running(self, site: Site) -> AbstractAsyncContextManager[Stack]:
        """Return a context in which servers, Envoy and this picker run."""
        if self.name == ROUND_ROBIN:
            return round_robin(site)
        if self.command and self.file is not None:
            return with_picker(site, self.command, self.file)
        return with_kvatlas(site, self.sections, picker_config=self.file)


def subjects_of(names: Sequence[str], *, command: str = "") -> list[Subject]:
    """Return the subjects, in order.

    Args:
        names: of policies, or paths of configuration files.
        command: command line of another picker, which then runs every EndpointPickerConfig after kvatlas; empty for none.

    Raises:
        ConfigError: a file cannot be used.
        CompareError: the command has no place for a port, no file to run with, or two subjects have one name.
    """
    if command:
        picker_arguments(command)
    found = [subject for name in names for subject in _subjects(name, command)]
    if command and not any(subject.command for subject in found):
        raise CompareError(
            "--picker: no EndpointPickerConfig is compared, which the other picker could run with"
        )
    known = [subject.name for subject in found]
    for name in known:
        if known.count(name) > 1:
            raise CompareError(f"found {name!r} twice; rename one of the files")
    return found


def _subjects(name: str, command: str) -> Iterator[Subject]:
    if name in NAMED:
        yield Subject(name, dict(NAMED[name]))
        return
    file = Path(name)
    if not file.exists():
        raise CompareError(f"found {name!r}, want a configuration file, or one of {', '.join(NAMED)}")
    loaded = load_scheduled(file)
    if not loaded.is_reference:
        yield Subject(file.stem, _deciding(loaded.config))
        return
    yield Subject(file.stem, file=file)
    if command:
        yield Subject(f"{file.stem} (other)", file=file, command=command)


def _deciding(config: KVAtlasConfig) -> dict[str, Any]:
    """Return the sections that decide; those of the servers are the simulation's."""
    data = plain(config)
    return {key: data[key] for key in DECIDING_KEYS if key in data}
