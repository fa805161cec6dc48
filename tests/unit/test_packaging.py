"""The installed parts: packages, data files, pins, generated code, and the wheel."""

from __future__ import annotations

import contextlib
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatch
from importlib import import_module, metadata
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from support.tree import ROOT, imports, read, tracked_files

PYPROJECT: dict[str, Any] = tomllib.loads(read(Path("pyproject.toml")))
PACKAGE_DATA: dict[str, list[str]] = PYPROJECT["tool"]["setuptools"]["package-data"]


def setup_arguments() -> dict[str, Any]:
    """Return the arguments that `setup.py` passes to setuptools."""
    with patch("setuptools.setup") as setup, contextlib.chdir(ROOT):
        runpy.run_path("setup.py")
    (call,) = setup.call_args_list
    return dict(call.kwargs)


SETUP = setup_arguments()
FOLDERS: dict[str, str] = SETUP["package_dir"]
DISTRIBUTIONS = metadata.packages_distributions()
INSTALLED = {canonicalize_name(each.name) for each in metadata.distributions()}
OUR_ROOTS = {
    "kvatlas",
    *(path.name for path in (ROOT / "tests").iterdir() if path.is_dir()),
    "bench",
}

# Sources of installed files, not installed themselves.
NOT_INSTALLED = frozenset({".proto", ".cpp", ".h", ".md"})


def to_install() -> list[Path]:
    ours = [path for path in tracked_files() if path.parts[0] in FOLDERS.values()]
    return [path for path in ours if path.suffix not in NOT_INSTALLED]


def package_of(folder: Path) -> str:
    return ".".join(("kvatlas", *folder.parts))


def left_out(
    files: Iterable[Path], packages: Iterable[str], patterns: Mapping[str, list[str]]
) -> Iterator[Path]:
    """Yield files that would not be installed, for lack of a package or of a `package-data` pattern."""
    for path in files:
        package = package_of(path.parent)
        wanted = ["*.py", *patterns.get("*", []), *patterns.get(package, [])]
        if package not in packages or not any(fnmatch(path.name, pattern) for pattern in wanted):
            yield path


def pins(text: str) -> dict[str, str]:
    """Return normalized name -> version of every line.

    Raises:
        ValueError: a line that is not `name==version`, or a repeated name.
    """
    found: dict[str, str] = {}
    for line in text.splitlines():
        match = re.fullmatch(r"([A-Za-z0-9._-]+)==([\w.+!]+)", line)
        if match is None:
            raise ValueError(f"not `name==version`: {line!r}")
        name = canonicalize_name(match[1])
        if name in found:
            raise ValueError(f"pinned twice: {name}")
        found[name] = match[2]
    return found


def requirements_of_users() -> list[Requirement]:
    project = PYPROJECT["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    return [Requirement(line) for group in groups for line in group]


def direct_requirements() -> list[Requirement]:
    groups = PYPROJECT["dependency-groups"].values()
    return requirements_of_users() + [Requirement(line) for group in groups for line in group]


ELSEWHERE = (Path("tests/vllm_check/plugin"), Path("tests/golden"))
"""Code for environments with other libraries: the plugin that vLLM loads, and the makers of golden files."""


def undeclared_libraries(source: str, path: Path, requirements: Iterable[Requirement]) -> set[str]:
    """Return imported libraries that are installed here but that `requirements` do not name."""
    declared = {canonicalize_name(requirement.name) for requirement in requirements}
    roots = {name.partition(".")[0] for _, name in imports(source, path)}
    return {
        root
        for root in roots - OUR_ROOTS - sys.stdlib_module_names
        if declared.isdisjoint(map(canonicalize_name, DISTRIBUTIONS.get(root, ())))
    }


def with_dependencies(requirements: Iterable[Requirement]) -> Iterator[Requirement]:
    """Yield the requirements installed here and all they need in turn; a dependency group may be left out."""
    pending = list(requirements)
    seen: set[str] = set()
    while pending:
        requirement = pending.pop()
        if str(requirement) in seen or canonicalize_name(requirement.name) not in INSTALLED:
            continue
        seen.add(str(requirement))
        yield requirement
        for line in metadata.requires(requirement.name) or ():
            needed = Requirement(line)
            extras = requirement.extras or {""}
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras):
                pending.append(needed)


def test_every_file_in_a_package_is_installed() -> None:
    assert list(left_out(to_install(), SETUP["packages"], PACKAGE_DATA)) == []


def test_every_installed_package_is_on_disk() -> None:
    assert set(SETUP["packages"]) == {package_of(path.parent) for path in to_install()}
    assert {f"kvatlas.{folder}": folder for folder in FOLDERS.values()} == FOLDERS


@pytest.mark.parametrize(
    ("path", "is_left_out"),
    [
        pytest.param("api/app.py", False, id="module"),
        pytest.param("api/new/app.py", True, id="module_of_no_package"),
        pytest.param("sim/py.typed", False, id="pattern_of_all"),
        pytest.param("api/page.html", False, id="pattern_of_the_package"),
        pytest.param("sim/page.html", True, id="pattern_of_another_package"),
        pytest.param("api/page.css", True, id="no_pattern"),
        pytest.param("api/ui/page.html", True, id="data_of_no_package"),
    ],
)
def test_install_rule_finds_file_when_it_is_left_out(path: str, is_left_out: bool) -> None:
    patterns = {"*": ["py.typed"], "kvatlas.api": ["*.html"]}
    found = list(left_out([Path(path)], ["kvatlas.api", "kvatlas.sim"], patterns))
    assert found == ([Path(path)] if is_left_out else [])


def test_every_folder_is_typed_and_linked_for_type_checkers() -> None:
    for folder in FOLDERS.values():
        assert (ROOT / folder / "py.typed").is_file()
        assert (ROOT / ".dev/kvatlas" / folder).readlink() == Path("../..", folder)
    assert {link.name for link in (ROOT / ".dev/kvatlas").iterdir()} == set(FOLDERS.values())


def test_type_checkers_see_every_python_file() -> None:
    pyright: list[str] = PYPROJECT["tool"]["pyright"]["include"]
    mypy: list[str] = PYPROJECT["tool"]["mypy"]["files"]
    folders = {path.parts[0] for path in tracked_files() if path.suffix == ".py"}
    assert folders == set(pyright)
    assert folders == {*mypy, *FOLDERS.values()} - {".dev/kvatlas"}


def test_constraints_are_sorted_pins() -> None:
    text = read(Path("constraints.txt"))
    assert pins(text)
    assert text.splitlines() == sorted(text.splitlines(), key=str.upper)


def test_constraints_pin_everything_that_is_installed() -> None:
    pinned = pins(read(Path("constraints.txt")))
    unpinned = {
        str(requirement)
        for requirement in with_dependencies(direct_requirements())
        if not requirement.specifier.contains(
            pinned.get(canonicalize_name(requirement.name), "0"), prereleases=True
        )
    }
    assert unpinned == set()


def test_every_imported_library_is_declared() -> None:
    files = [
        path for path in tracked_files() if path.suffix == ".py" and not set(ELSEWHERE) & set(path.parents)
    ]
    users, developers = requirements_of_users(), direct_requirements()
    undeclared = {
        path: undeclared_libraries(
            read(path), path, users if path.parts[0] in FOLDERS.values() else developers
        )
        for path in files
    }
    assert {path: names for path, names in undeclared.items() if names} == {}


def test_library_rule_finds_library_that_is_not_declared() -> None:
    source = "import sys, msgspec\nimport pytest.mark\nfrom ..events import model\nfrom google.protobuf import any_pb2"
    requirements = [Requirement("Msgspec>=0.19"), Requirement("protobuf")]
    assert undeclared_libraries(source, Path("api/a.py"), requirements) == {"pytest"}


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("-e .", id="editable"),
        pytest.param("msgspec>=0.19", id="lower_bound"),
        pytest.param("msgspec @ file:///tmp/msgspec.whl", id="file"),
        pytest.param("msgspec==0.22.0 --hash=sha256:00", id="hash"),
        pytest.param("--no-binary msgspec", id="option"),
        pytest.param("msgspec==1\nMsgspec==2", id="twice"),
    ],
)
def test_pin_rule_refuses_line_that_is_no_pin(line: str) -> None:
    with pytest.raises(ValueError, match=r"not `name==version`|pinned twice"):
        pins(line)


def descriptors(protos: Iterable[Path], target: Path) -> dict[str, bytes]:
    """Return the descriptors of the proto files, in the form that generated code carries."""
    command = [
        sys.executable,
        "-m",
        "grpc_tools.protoc",
        "-I.",
        f"--descriptor_set_out={target}",
        *map(str, protos),
    ]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    files = FileDescriptorSet.FromString(target.read_bytes()).file
    return {file.name: without_json_names(file) for file in files}


def without_json_names(file: FileDescriptorProto) -> bytes:
    """Return the serialized descriptor without JSON names, which generated code leaves out."""
    pending = list(file.message_type)
    while pending:
        message = pending.pop()
        pending.extend(message.nested_type)
        for field in message.field:
            field.ClearField("json_name")
    return file.SerializeToString(deterministic=True)


def test_generated_code_is_that_of_the_proto_files(tmp_path: Path) -> None:
    protos = [path for path in tracked_files() if path.suffix == ".proto"]
    modules = [import_module(f"{package_of(path.parent)}.{path.stem}_pb2") for path in protos]
    carried = {
        module.DESCRIPTOR.name: without_json_names(
            FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
        )
        for module in modules
    }
    assert carried == descriptors(protos, tmp_path / "descriptors")


def test_protobuf_requirement_is_that_of_generated_code() -> None:
    (protobuf,) = [each for each in direct_requirements() if each.name == "protobuf"]
    generated = [read(path) for path in tracked_files() if path.name.endswith("_pb2.py")]
    versions = {
        version
        for text in generated
        for version in re.findall(r"^# Protobuf Python Version: (.+)$", text, re.M)
    }
    assert {str(protobuf.specifier)} == {f">={version}" for version in versions}


@pytest.mark.slow
@pytest.mark.timeout(600)  # it compiles
def test_wheel_from_the_sdist_holds_the_packages_the_native_parts_and_nothing_else(tmp_path: Path) -> None:
    """Build the sdist from the files that the image is built from, and the wheel from the sdist."""
    source = tmp_path / "source"
    kept = [Path(line[1:]) for line in read(Path(".dockerignore")).splitlines() if line.startswith("!")]
    for path in tracked_files():
        if not any(path.is_relative_to(each) for each in kept):
            continue
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, source / path)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)

    assert len(list(tmp_path.glob("kvatlas-*.tar.gz"))) == 1
    (wheel,) = tmp_path.glob("kvatlas-*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    info = f"kvatlas-{PYPROJECT['project']['version']}.dist-info"
    assert {name for name in names if name.startswith("kvatlas/")} == {
        "kvatlas/api/extproc/_native.abi3.so",
        "kvatlas/api/http2/_native.abi3.so",
        "kvatlas/events/_native.abi3.so",
        "kvatlas/indexer/_native.abi3.so",
        "kvatlas/scorers/_native.abi3.so",
        "kvatlas/tokenization/encoding/_native.abi3.so",
        *(f"kvatlas/{path}" for path in to_install()),
    }
    assert {name.split("/")[0] for name in names} == {"kvatlas", info}
    assert f"{info}/licenses/LICENSE" in names
    assert f"{info}/entry_points.txt" in names
