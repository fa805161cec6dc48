"""The page `docs/reference-compatibility.md`, made from the code and from lists of what the reference has."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
from msgspec import inspect

from kvatlas.configs.endpoint_picker import EndpointPickerConfig, kvatlas_config
from kvatlas.configs.feature_gates import GATES
from kvatlas.configs.json_schema import field_texts
from kvatlas.configs.schema import PluginConfig
from kvatlas.routing.control_headers import CONTROL_HEADERS
from kvatlas.routing.plan.known_types import without_unknown_plugins
from kvatlas.routing.plan.reference import NO_EFFECT
from kvatlas.scorers.builtin import builtin_registry
from support.compatibility.flags import flag_rows
from support.compatibility.plugins import TYPES, USED
from support.compatibility.published import refused_rows
from support.compatibility.requests import HEADERS, RESOURCES
from support.compatibility.series import HERE, OLDER, PREFIX
from support.tree import ROOT

PAGE = ROOT / "docs" / "reference-compatibility.md"

RECORDED = ROOT / "tests" / "golden" / "picker"
KNOWN = (RECORDED / "plugins" / "known", RECORDED / "disaggregation" / "known")
"""Cases of the recordings in which kvatlas differs, by group."""

_HEAD = """\
# Compared with the reference picker

Everything that the reference endpoint picker, llm-d-router, takes or says, and what kvatlas does with it. `make compatibility` writes
this page: from the code, where it knows the answer, and from lists in `tests/support/compatibility`. A test compares both. Plugins,
flags and fields are those of llm-d-router at 024aa2d9 and of `llm-d.ai/v1` in its documentation of November 2026.

[Files of the reference picker](configuration.md#files-of-the-reference-picker) shows how to use them. `kvatlas config show FILE` prints
what a file means here, what of it has no effect, and which rules go beyond the reference.
"""


def page() -> str:
    """Return the whole page."""
    sections = [
        _HEAD,
        *_plugins(),
        *_file(),
        *_published(),
        *_flags(),
        *_requests(),
        *_series(),
        *_differences(),
    ]
    return "\n".join(sections)


def registered_types() -> dict[str, list[str]]:
    """Return type -> kinds, for every type that kvatlas registers."""
    found: dict[str, list[str]] = {}
    for kind in builtin_registry().kinds:
        for plugin_type in kind:
            found.setdefault(plugin_type, []).append(kind.kind)
    return found


def reference_types() -> dict[str, list[str]]:
    """Return kind -> types of the reference, each with an asterisk if it is experimental."""
    return {kind: types.split() for kind, types in TYPES.items()}


def what_is_done(plugin_type: str) -> str:
    """Return what kvatlas does with a plugin type of the reference.

    Raises:
        LookupError: the program takes the type, and no list here has words for it.
    """
    if plugin_type in registered_types():
        has_page = (ROOT / "docs" / "scorers" / f"{plugin_type}.md").exists()
        return f"[works](scorers/{plugin_type}.md)" if has_page else "works"
    if plugin_type in USED:
        return f"used: {USED[plugin_type]}"
    if plugin_type in NO_EFFECT:
        return f"no effect: {NO_EFFECT[plugin_type]}"
    file = EndpointPickerConfig(api_version="llm-d.ai/v1", plugins=(PluginConfig(type=plugin_type),))
    taken, refused = without_unknown_plugins(kvatlas_config(file))
    if refused:
        return "refused: kvatlas does not have it"
    for plugin in taken.plugins:
        if plugin.known_as == plugin_type:
            return f"as {what_is_named(plugin.type)}"
    raise LookupError(f"{plugin_type} is not refused: say in USED what of it is used")


def _plugins() -> Iterator[str]:
    yield "## Plugins\n"
    yield (
        "An asterisk marks a type for which the reference needs `--allow-experimental-plugins`; kvatlas needs it for none.\n"
        "A type without effect is accepted, and named in the log. A refused one stops the start, unless\n"
        "`--ignore-unknown-plugins` leaves it out.\n"
    )
    named: set[str] = set()
    for kind, types in reference_types().items():
        names = [each.rstrip("*") for each in types]
        named.update(names)
        rows = (
            [f"`{name}`{each[len(name) :]}", what_is_done(name)]
            for name, each in zip(names, types, strict=True)
        )
        yield _table((kind, "here"), rows)
    own = sorted(registered_types().keys() - named)
    yield _table(
        ("only here", "kind"), ([what_is_named(each), ", ".join(registered_types()[each])] for each in own)
    )


def what_is_named(plugin_type: str) -> str:
    """Return a type of kvatlas, with its page."""
    return f"[{plugin_type}](scorers/{plugin_type}.md)"


def _file() -> Iterator[str]:
    yield "## Fields of the file\n"
    yield (
        "Unknown keys are errors, as in the reference, and keys without a value count as absent. Parameters of plugins are on\n"
        "their pages.\n"
    )
    info = inspect.type_info(EndpointPickerConfig)
    assert isinstance(info, inspect.StructType)
    yield _table(("field", "here"), _fields(info, ""))
    yield "## Feature gates\n"
    yield _table(
        ("gate", "default", "here"),
        ([f"`{name}`", str(gate.default).lower(), f"no effect: {gate.why}"] for name, gate in GATES.items()),
    )


def _published() -> Iterator[str]:
    yield "## Published files that the reference refuses\n"
    yield (
        "Of the published files of the reference, some have keys or types that it no longer has, or never had. It was started with\n"
        "each of them. kvatlas refuses the same keys with their place and, if there is one, the name that is meant. An older form is\n"
        "accepted if it means the same here.\n"
    )
    yield _table(("the reference refuses a file because", "here"), refused_rows())


def _fields(info: inspect.StructType, above: str) -> Iterator[Sequence[str]]:
    texts = field_texts(info.cls)
    for base in info.cls.__mro__[1:]:
        if issubclass(base, msgspec.Struct) and base.__module__ == info.cls.__module__:
            texts = field_texts(base) | texts
    for field in info.fields:
        path = f"{above}{field.encode_name}"
        yield f"`{path}`", texts[field.name]
        below = _struct_in(field.type)
        if below is not None:
            step = "[]." if isinstance(field.type, inspect.VarTupleType) else "."
            yield from _fields(below, f"{path}{step}")


def _struct_in(info: inspect.Type) -> inspect.StructType | None:
    """Return the section that a field is, holds, or may be; None if it has none."""
    match info:
        case inspect.StructType():
            return info
        case inspect.VarTupleType():
            return _struct_in(info.item_type)
        case inspect.UnionType():
            return next((each for each in info.types if isinstance(each, inspect.StructType)), None)
        case _:
            return None


def _flags() -> Iterator[str]:
    yield "## Flags\n"
    yield _table(("flag", "here"), flag_rows())


def _requests() -> Iterator[str]:
    yield "## Headers and metadata\n"
    yield (
        "A header that is not for clients is removed from their requests, so that no engine or sidecar sees it; the reference\n"
        "removes none.\n"
    )
    rows = ([f"`{name}`", "yes" if name in CONTROL_HEADERS else "", text] for name, text in HEADERS.items())
    yield _table(("name", "removed", "here"), rows)
    yield "## Resources and labels\n"
    yield _table(("in the cluster", "here"), RESOURCES.items())


def _series() -> Iterator[str]:
    yield "## Series\n"
    yield (
        "The reference serves most of its series under two names. kvatlas serves neither, but [its own](metrics.md), so that\n"
        "dashboards and alerts of the reference need these instead.\n"
    )
    older = {newer: name for name, newer in OLDER.items()}
    rows = (
        [f"`{PREFIX}{name}`", f"`{older[name]}`" if name in older else "", text]
        for name, text in HERE.items()
    )
    yield _table(("of the reference", "older name", "here"), rows)


def _differences() -> Iterator[str]:
    yield "## Decided otherwise on purpose\n"
    yield (
        "Recordings of the reference are replayed against a running kvatlas by the tests: the same picks, scores, statuses and\n"
        "headers. These cases differ on purpose.\n"
    )
    rows = [
        (f"`{file.stem}/{case}`", _cell(reason))
        for folder in KNOWN
        for file in sorted(folder.glob("*.toml"))
        for case, reason in deliberate(tomllib.loads(file.read_text())).items()
    ]
    yield _table(("case", "reason"), rows)


def deliberate(sections: Mapping[str, Mapping[str, str]]) -> Mapping[str, str]:
    """Return case -> reason, of those that differ on purpose."""
    return sections.get("deliberate", {})


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(line) + " |" for line in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:], ""]).replace("|  |", "| |")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
