"""The import rules between folders, and the outside world that the core may not touch (table in CONTRIBUTING.md)."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

from support.tree import imports, read, syntax_tree, tracked_files

MAY_IMPORT: dict[str, frozenset[str]] = {
    "events": frozenset(),
    "indexer": frozenset({"events"}),
    "scorers": frozenset({"events", "indexer"}),
    "configs": frozenset(),
    "tokenization": frozenset({"events", "indexer", "configs"}),
    "fleet": frozenset({"events", "indexer", "scorers", "configs"}),
    "routing": frozenset({"events", "indexer", "scorers", "configs", "tokenization", "fleet"}),
    "api": frozenset({"events", "indexer", "scorers", "configs", "tokenization", "fleet", "routing"}),
    "app": frozenset(
        {"events", "indexer", "scorers", "configs", "tokenization", "fleet", "routing", "api", "sim"}
    ),
    "sim": frozenset(
        {"events", "indexer", "scorers", "configs", "tokenization", "fleet", "routing", "api", "app"}
    ),
}
"""The rooms in their order. Only `app` and `sim` know each other: the command line starts simulations."""

ALL = frozenset(MAY_IMPORT)

KNOWS_NO_KVATLAS = Path("fleet/kubernetes/client")
"""A client of the API server, which imports from the rest of kvatlas only the root of its errors, addresses and `FileWatch`."""

CORE = frozenset({"events", "indexer", "scorers"})
SHELLS_IN_CORE = {
    Path(f"events/{name}.py"): f"kvatlas.events.{name}"
    for name in (
        "subscriber",
        "subscription",
        "options",
        "bootstrap",
        "snapshot_server",
        "connected",
        "bound",
        "replay",
        "receiver",
        "inbox",
        "inboxes",
        "native_inbox",
        "sockets",
        "tasks",
        "turns",
        "admission",
    )
}
CORE_LIBRARIES = frozenset({"msgspec", "numpy", "xxhash"})

# Sockets, clocks, randomness, files, processes, threads, logging, and imports by name, which could hide any of these.
NOT_IN_CORE = frozenset(
    "asyncio concurrent contextvars ctypes datetime fileinput fcntl glob http importlib io logging mmap"
    " multiprocessing os pathlib pkgutil queue random runpy sched secrets select selectors shutil signal socket"
    " socketserver sqlite3 ssl subprocess tempfile _thread threading time timeit urllib uuid warnings".split()
)
NOT_CALLED_IN_CORE = frozenset("__import__ breakpoint compile eval exec input open print".split())
CACHES = frozenset({"cache", "lru_cache"})

CONTAINERS = frozenset("dict list set bytearray defaultdict deque Counter OrderedDict".split())
MUTATORS = frozenset(
    "add append appendleft clear discard extend insert pop popitem popleft remove setdefault update".split()
)


def layer_violations(source: str, path: Path) -> list[str]:
    """Return imports that the folder of `path` may not make."""
    folder = path.parts[0]
    found: list[str] = []
    for line, name in imports(source, path):
        root, _, rest = name.partition(".")
        target = rest.partition(".")[0]
        if root in ALL:
            found.append(f"{path}:{line}: imports {name} by its bare name")
        elif root == "kvatlas" and folder in MAY_IMPORT and target not in MAY_IMPORT[folder] | {folder}:
            found.append(f"{path}:{line}: {folder} may not import {target}")
    return found


def internal_imports(files: Iterable[Path]) -> dict[Path, set[Path]]:
    """Return module -> the modules that it imports, for all `files`; a name counts as the module that defines it."""
    known = {module_name(path): path for path in files}
    found: dict[Path, set[Path]] = {}
    for path in known.values():
        targets: set[Path] = set()
        for _, imported in imports(read(path), path):
            name = imported
            while name and name not in known:
                name = name.rpartition(".")[0]
            if name and known[name] != path:
                targets.add(known[name])
        found[path] = targets
    return found


def module_name(path: Path) -> str:
    """Return `kvatlas.events.model` for `events/model.py`, and the package for its `__init__.py`."""
    parts = path.with_suffix("").parts
    return ".".join(("kvatlas", *(parts[:-1] if parts[-1] == "__init__" else parts)))


def sub_folder_imports(modules: Mapping[Path, Iterable[Path]]) -> dict[Path, set[Path]]:
    """Return sub-folder -> the sub-folders beside it that its modules import, for one folder."""
    found: dict[Path, set[Path]] = {}
    for path, targets in modules.items():
        for target in targets:
            own, other = path.parent.parts, target.parent.parts
            depth = next(
                (n for n, pair in enumerate(zip(own, other, strict=False)) if pair[0] != pair[1]), None
            )
            if depth:
                found.setdefault(Path(*own[: depth + 1]), set()).add(Path(*other[: depth + 1]))
    return found


def cycles(graph: Mapping[Path, Iterable[Path]]) -> list[list[Path]]:
    """Return groups of nodes that reach each other, each sorted."""
    reached: dict[Path, set[Path]] = {}
    for start in graph:
        seen, pending = set[Path](), list(graph[start])
        while pending:
            node = pending.pop()
            if node not in seen:
                seen.add(node)
                pending.extend(graph.get(node, ()))
        reached[start] = seen
    groups = {
        tuple(sorted({node, *(each for each in seen if node in reached.get(each, ()))}))
        for node, seen in reached.items()
        if node in seen
    }
    return [list(group) for group in sorted(groups)]


def core_violations(source: str, path: Path) -> list[str]:
    """Return I/O, clocks, randomness, logging and hidden state in a module of the core."""
    tree = syntax_tree(source)
    found: list[str] = []
    for line, name in imports(source, path):
        root = name.partition(".")[0]
        is_library = root not in sys.stdlib_module_names and root != "kvatlas"
        if root in NOT_IN_CORE or (is_library and root not in CORE_LIBRARIES):
            found.append(f"{path}:{line}: imports {root}")
        elif any(name == shell or name.startswith(f"{shell}.") for shell in SHELLS_IN_CORE.values()):
            found.append(f"{path}:{line}: imports the shell {name}")
        elif root == "functools" and name.rpartition(".")[2] in CACHES:
            found.append(f"{path}:{line}: keeps results in {name}")
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in NOT_CALLED_IN_CORE:
                found.append(f"{path}:{node.lineno}: calls {name}()")
            case ast.Attribute(value=ast.Name(id="functools"), attr=attr) if attr in CACHES:
                found.append(f"{path}:{node.lineno}: keeps results in functools.{attr}")
            case _:
                pass
    return found


def state_violations(source: str, path: Path) -> list[str]:
    """Return module-level state: `global`, containers that start empty, and constants that some code changes."""
    tree = syntax_tree(source)
    found = [f"{path}:{node.lineno}: global" for node in ast.walk(tree) if isinstance(node, ast.Global)]
    containers: set[str] = set()
    for statement in tree.body:
        for name, value in module_level_containers(statement):
            containers.add(name)
            if is_empty(value):
                found.append(f"{path}:{statement.lineno}: {name} starts empty, so something fills it")
    for line, name in mutations(tree):
        if name in containers:
            found.append(f"{path}:{line}: changes the module-level {name}")
    return found


def module_level_containers(statement: ast.stmt) -> Iterator[tuple[str, ast.expr]]:
    """Yield the names that `statement` binds to a list, dict or set, with the value."""
    match statement:
        case ast.Assign(targets=targets, value=value) if is_container(value):
            yield from ((target.id, value) for target in targets if isinstance(target, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value) if is_container(value):
            yield name, value
        case _:
            pass


def is_container(value: ast.expr) -> bool:
    """Return whether the expression makes a new mutable container."""
    match value:
        case ast.List() | ast.Dict() | ast.Set() | ast.ListComp() | ast.DictComp() | ast.SetComp():
            return True
        case ast.Call(func=ast.Name(id=name)) | ast.Call(func=ast.Attribute(attr=name)):
            return name in CONTAINERS
        case _:
            return False


def is_empty(container: ast.expr) -> bool:
    """Return whether the new container is empty; `defaultdict(list)` is not."""
    match container:
        case ast.List(elts=[]) | ast.Dict(keys=[]) | ast.Call(args=[], keywords=[]):
            return True
        case ast.Call(
            func=ast.Name(id="defaultdict") | ast.Attribute(attr="defaultdict"), args=[_], keywords=[]
        ):
            return True
        case _:
            return False


def mutations(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and name of every container that is changed by name: `X[k] = v`, `del X[k]`, `X.append(v)`."""
    for node in ast.walk(tree):
        match node:
            case ast.Subscript(value=ast.Name(id=name), ctx=ast.Store() | ast.Del()):
                yield node.lineno, name
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=attr)) if attr in MUTATORS:
                yield node.lineno, name
            case _:
                pass


def python_files(*folders: str) -> list[Path]:
    return [
        path
        for path in tracked_files()
        if path.suffix == ".py" and path.parts[0] in folders and not path.stem.endswith(("_pb2", "_pb2_grpc"))
    ]


def test_every_folder_has_modules_to_check() -> None:
    assert {path.parts[0] for path in python_files(*ALL)} == ALL
    assert all((path in tracked_files()) for path in SHELLS_IN_CORE)


def test_imports_follow_the_layers() -> None:
    files = python_files(*ALL, "tests", "bench", "scripts")
    assert [each for path in files for each in layer_violations(read(path), path)] == []


def test_no_two_modules_import_each_other() -> None:
    assert cycles(internal_imports(python_files(*ALL))) == []


def test_no_two_sub_folders_import_each_other() -> None:
    assert cycles(sub_folder_imports(internal_imports(python_files(*ALL)))) == []


def test_client_of_the_api_server_knows_no_kvatlas() -> None:
    modules = internal_imports(python_files("events", "configs", "fleet"))
    targets = {t for path, found in modules.items() if path.is_relative_to(KNOWS_NO_KVATLAS) for t in found}
    ours = {str(target) for target in targets if not target.is_relative_to(KNOWS_NO_KVATLAS)}
    known = {"events/errors.py", "events/line_limit.py", "configs/address.py", "configs/file_watch.py"}
    assert ours == known


def test_cycle_rule_finds_groups_that_reach_each_other() -> None:
    a, b, c, d = (Path(name) for name in "abcd")
    assert cycles({a: {b}, b: {c}, c: {a}, d: {a}}) == [[a, b, c]]
    assert cycles({a: {b, c}, b: {c}}) == []


def test_sub_folder_rule_compares_the_folders_that_lie_side_by_side() -> None:
    modules = {
        Path("fleet/scrape/target.py"): {Path("fleet/kubernetes/client/wire.py"), Path("fleet/fleet.py")},
        Path("fleet/fleet.py"): {Path("fleet/scrape/report.py")},
        Path("api/rest/app.py"): {Path("fleet/scrape/target.py")},
    }
    assert sub_folder_imports(modules) == {Path("fleet/scrape"): {Path("fleet/kubernetes")}}


def test_core_touches_no_outside_world() -> None:
    files = [path for path in python_files(*CORE) if path not in SHELLS_IN_CORE]
    assert [each for path in files for each in core_violations(read(path), path)] == []


def test_modules_hold_no_state() -> None:
    assert [each for path in python_files(*ALL) for each in state_violations(read(path), path)] == []


@pytest.mark.parametrize(
    ("path", "source", "violation"),
    [
        pytest.param(
            "events/wire.py", "from ..indexer import match", "events may not import indexer", id="upwards"
        ),
        pytest.param("indexer/a.py", "from .. import api", "indexer may not import api", id="namespace"),
        pytest.param(
            "scorers/a.py", "import kvatlas.configs.schema", "scorers may not import configs", id="absolute"
        ),
        pytest.param(
            "configs/a.py", "from ..events.errors import X", "configs may not import events", id="configs"
        ),
        pytest.param("api/a.py", "from ..sim.engine import X", "api may not import sim", id="simulator"),
        pytest.param(
            "fleet/a.py", "from ..routing.router import X", "fleet may not import routing", id="fleet"
        ),
        pytest.param(
            "indexer/native/a.py", "from ...sim import x", "indexer may not import sim", id="sub_package"
        ),
        pytest.param(
            "indexer/a.py", "def f():\n  from ..api import x", "indexer may not import api", id="in_function"
        ),
        pytest.param(
            "tests/unit/test_a.py", "import events.model", "events.model by its bare name", id="bare"
        ),
        pytest.param(
            "api/a.py", "from indexer import match", "indexer.match by its bare name", id="bare_from"
        ),
    ],
)
def test_layer_rule_finds_violation_when_there_is_one(path: str, source: str, violation: str) -> None:
    (found,) = layer_violations(source, Path(path))
    assert found.endswith(violation) or violation in found


@pytest.mark.parametrize(
    ("path", "source"),
    [
        pytest.param("scorers/a.py", "from ..indexer.match import PrefixMatch", id="downwards"),
        pytest.param("indexer/native/a.py", "from ..keys import chain", id="own_folder"),
        pytest.param("app/cli/a.py", "from ...sim.server import x", id="top"),
        pytest.param("tests/unit/test_a.py", "from kvatlas.sim import server", id="test"),
        pytest.param("events/a.py", "import array, msgspec", id="library"),
    ],
)
def test_layer_rule_passes_when_import_is_allowed(path: str, source: str) -> None:
    assert layer_violations(source, Path(path)) == []


@pytest.mark.parametrize(
    ("source", "violation"),
    [
        pytest.param("import asyncio", "imports asyncio", id="asyncio"),
        pytest.param("from time import monotonic", "imports time", id="clock"),
        pytest.param("from os import environ", "imports os", id="environment"),
        pytest.param("import random", "imports random", id="randomness"),
        pytest.param("import logging.handlers", "imports logging", id="logging"),
        pytest.param("import zmq", "imports zmq", id="zmq"),
        pytest.param("from grpc import aio", "imports grpc", id="grpc"),
        pytest.param("from functools import lru_cache", "keeps results in functools.lru_cache", id="cache"),
        pytest.param(
            "import functools\nfunctools.cache(f)", "keeps results in functools.cache", id="cache_attribute"
        ),
        pytest.param(
            "from .subscriber import S", "imports the shell kvatlas.events.subscriber.S", id="shell"
        ),
        pytest.param(
            "from . import subscriber", "imports the shell kvatlas.events.subscriber", id="shell_module"
        ),
        pytest.param("print(1)", "calls print()", id="print"),
        pytest.param("def f():\n  open('x')", "calls open()", id="open"),
    ],
)
def test_core_rule_finds_violation_when_there_is_one(source: str, violation: str) -> None:
    (found,) = core_violations(source, Path("events/a.py"))
    assert found.endswith(violation)


def test_core_rule_passes_when_module_is_pure() -> None:
    source = (
        "import struct\nimport msgspec\nfrom functools import partial\nfrom .model import Event\nlen(b'')"
    )
    assert core_violations(source, Path("events/a.py")) == []


@pytest.mark.parametrize(
    ("source", "violation"),
    [
        pytest.param("X = 1\ndef f():\n  global X\n  X = 2", "global", id="global"),
        pytest.param("SEEN = {}", "SEEN starts empty", id="empty_dict"),
        pytest.param("SEEN: set[int] = set()", "SEEN starts empty", id="empty_set"),
        pytest.param(
            "import collections\nSEEN = collections.defaultdict(list)", "SEEN starts empty", id="defaultdict"
        ),
        pytest.param("T = {'a': 1}\ndef f():\n  T['b'] = 2", "changes the module-level T", id="item"),
        pytest.param("T = {'a': 1}\ndef f():\n  del T['a']", "changes the module-level T", id="deletion"),
        pytest.param("T = [1]\ndef f():\n  T.append(2)", "changes the module-level T", id="method"),
    ],
)
def test_state_rule_finds_violation_when_there_is_one(source: str, violation: str) -> None:
    (found,) = state_violations(source, Path("events/a.py"))
    assert violation in found


def test_state_rule_passes_when_containers_are_constant_or_local() -> None:
    source = "T = {'a': 1}\nEMPTY = frozenset()\ndef f():\n  seen = []\n  seen.append(T['a'])\n  return seen"
    assert state_violations(source, Path("events/a.py")) == []
