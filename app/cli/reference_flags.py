"""The reference endpoint picker's command line: its flags in our form, and the values of those that only it has.

Its flags are Go's: a switch stands alone or has its value after `=`, any flag may begin with one dash, the last of
several counts, and charts write `--name=value` or `--name value`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ...configs.schema import KVAtlasConfig
from .flag_table import FLAGS, Flag
from .go_values import BOOLEANS

SHARED_SWITCHES = frozenset({"secure-serving", "ha-enable-leader-election", "metrics-endpoint-auth"})
"""Switches of the reference that are options of `kvatlas serve` too, and mean the same there."""


@dataclass(frozen=True, slots=True)
class ReferenceFlags:
    """Flags that only the reference has, as given.

    Attributes:
        given: name -> text of its value, the last one of several; `true` for a switch without value.
    """

    given: Mapping[str, str] = field(default_factory=dict[str, str])

    def apply(self, config: KVAtlasConfig) -> KVAtlasConfig:
        """Return the configuration with the flags in place of its own values.

        Raises:
            ValueError: a flag cannot be used; the text names it.
        """
        changed = config
        for flag in self._flags():
            if flag.apply is None:
                continue
            try:
                changed = flag.apply(changed, self.given[flag.name])
            except ValueError as error:
                raise ValueError(f"--{flag.name}: {error}") from error
        return changed

    def notes(self) -> list[str]:
        """Return one line for each given flag that has no effect, with the reason."""
        return [f"--{flag.name} has no effect here: {flag.reason}" for flag in self._flags() if flag.reason]

    def _flags(self) -> Iterable[Flag]:
        return (flag for name, flag in FLAGS.items() if name in self.given)


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A command line for our parser.

    Attributes:
        arguments: flags and their values.
        reference: flags that only the reference has.
    """

    arguments: tuple[str, ...]
    reference: ReferenceFlags


def our_command_line(arguments: Sequence[str]) -> CommandLine:
    """Return the arguments of `serve` with the reference's flags in our form; our parser refuses unknown ones."""
    ours: list[str] = []
    given: dict[str, str] = {}
    rest = deque(arguments)
    while rest:
        argument = rest.popleft()
        name, equals, value = argument.lstrip("-").partition("=")
        if name[:1] == "v" and name[1:].isdecimal():  # Go takes -v4 for --v=4
            name, equals, value = "v", "=", name[1:]
        flag = FLAGS.get(name)
        if not argument.startswith("-"):
            if argument:  # charts may render an empty argument
                ours.append(argument)
        elif name in SHARED_SWITCHES or (flag is not None and flag.is_switch):
            if not equals:  # Go ignores a separate value, but whoever writes one means it
                value = rest.popleft() if rest and rest[0] in BOOLEANS else "true"
            value = str(BOOLEANS.get(value, value)).lower()  # our parser refuses anything else
            if flag is None:
                ours.append(f"--{name}={value}")
            else:
                given[name] = value
        elif flag is not None:
            if not equals:
                value = rest.popleft() if rest else ""
            given[name] = value
        else:
            ours.append(argument)
            if not equals and rest and not rest[0]:  # switches the listener off
                ours.append(rest.popleft())
    return CommandLine(tuple(ours), ReferenceFlags(given))


def reference_help() -> str:
    """Return the flags that only the reference has, one paragraph each."""
    described = [
        f"--{flag.name} {flag.value}".rstrip() + f": {flag.text or f'no effect, since {flag.reason}'}"
        for flag in FLAGS.values()
    ]
    return "\n\n".join(("Flags of the reference endpoint picker, with values as in Go:", *described))
