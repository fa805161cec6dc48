"""Rules for every file of the repository: no traces of a machine, no dead links, no leftovers, no giants."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from urllib.parse import unquote

import pytest

from support.tree import ROOT, read, tracked_files

MAX_LINES = 400
THIS_FILE = Path(__file__).relative_to(ROOT)
GUARDS = Path("tests/support/leaks.py")
NAVIGATION = Path("zensical.toml")
"""Names pages from the folder `docs` on."""
CODE = frozenset(".py .pyi .cpp .h .proto .sh .js .css .html .yaml .toml".split())
CODE_NAMES = frozenset({"Makefile", "run"})
LOCK_FILES = frozenset(
    "uv.lock poetry.lock pdm.lock pylock.toml Pipfile.lock package-lock.json yarn.lock pnpm-lock.yaml".split()
)

# Character classes keep the patterns from matching themselves.
PACKAGE_INDEX = re.compile(
    r"pypi[.]org|pythonhosted[.]org|npmjs[.]org|yarnpkg[.]com|crates[.]io|proxy[.]golang[.]org"
    r"|-index-ur[l]|find-link[s]|index_ur[l]|INDEX_UR[L]|/simple/(?=\s|$)",
)
MACHINE_PATH = re.compile(r"(?<![\w.~-])/(?:work|root|home)/\w")
LEFTOVER = re.compile(r"\b(?:TO[D]O|FIX[M]E|XX[X]|HAC[K])\b")
MANAGER = "@contextmanager\ndef f():\n"

FENCE = re.compile(r"^ *(```|~~~).*?^ *\1", re.MULTILINE | re.DOTALL)
CODE_SPAN = re.compile(r"`[^`\n]+`")
LINK = re.compile(
    r"\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)|^\[[^\]]+\]:\s*(\S+)|(?:src|href)=\"([^\"]+)\"", re.M
)
HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*$", re.MULTILINE)
NAMED_DOCUMENT = re.compile(r"\b(?:(?:[\w-]+/)+[\w.-]+|[A-Z]{4,})\.md\b")
NAMED_PATH = re.compile(r"`((?:[\w.-]+/)+[\w.-]*)`")


def is_generated(path: Path) -> bool:
    return path.stem.endswith(("_pb2", "_pb2_grpc"))


def is_recording(path: Path) -> bool:
    return path.parts[:2] == ("tests", "golden")


def is_code(path: Path) -> bool:
    is_ours = not is_generated(path) and not is_recording(path)
    return is_ours and (path.suffix in CODE or path.name in CODE_NAMES)


def matching_lines(pattern: re.Pattern[str], text: str) -> Iterator[str]:
    """Yield `line number: the match` of every line in which the pattern occurs."""
    for number, line in enumerate(text.splitlines(), 1):
        if match := pattern.search(line):
            yield f"{number}: {match[0]}"


def package_indexes(path: Path, text: str) -> Iterator[str]:
    """Yield addresses of package indexes, options that name one, and lock files, which record one."""
    if path.name in LOCK_FILES:
        yield "is a lock file"
    yield from matching_lines(PACKAGE_INDEX, text)


def machine_paths(_path: Path, text: str) -> Iterator[str]:
    """Yield absolute paths of the machine that a file was written on."""
    yield from matching_lines(MACHINE_PATH, text)


def leftovers(path: Path, text: str) -> Iterator[str]:
    """Yield words that mark unfinished code."""
    if is_code(path):
        yield from matching_lines(LEFTOVER, text)


def giants(path: Path, text: str) -> Iterator[str]:
    """Yield a message if the file is too long to hold one idea."""
    if is_code(path) and (n_lines := text.count("\n")) > MAX_LINES:
        yield f"has {n_lines} lines, at most {MAX_LINES}"


def anchors(markdown: str) -> set[str]:
    """Return anchors of the headings, as code hosts make them."""
    found: set[str] = set()
    for heading in HEADING.findall(FENCE.sub("", markdown)):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        same = sum(1 for each in found if re.fullmatch(rf"{re.escape(anchor)}(-\d+)?", each))
        found.add(f"{anchor}-{same}" if same else anchor)
    return found


def dead_links(path: Path, text: str) -> Iterator[str]:
    """Yield relative links of a Markdown file to files or headings that do not exist."""
    if path.suffix != ".md":
        return
    for match in LINK.finditer(CODE_SPAN.sub("", FENCE.sub("", text))):
        target = unquote(match[match.lastindex or 0])
        name, _, anchor = target.partition("#")
        if re.match(r"[a-z][a-z0-9+.-]*:", target):
            continue
        file = ROOT / path.parent / name
        if name.startswith("/") or not file.exists():
            yield f"links to {target}, which does not exist"
        elif anchor and anchor not in anchors(file.read_text() if name else text):
            yield f"links to {target}, which has no such heading"


def dead_paths(path: Path, text: str) -> Iterator[str]:
    """Yield paths that a Markdown file names as code, into a folder of this repository, and that do not exist."""
    if path.suffix != ".md":
        return
    for name in NAMED_PATH.findall(FENCE.sub("", text)):
        starts = [start for start in (ROOT, ROOT / path.parent) if (start / Path(name).parts[0]).is_dir()]
        if starts and not any((start / name).exists() for start in starts):
            yield f"names {name}, which does not exist"


def dead_documents(path: Path, text: str) -> Iterator[str]:
    """Yield documents that code refers to and that do not exist."""
    if is_code(path) and path != THIS_FILE:
        folder = "docs" if path == NAVIGATION else path.parent
        for name in NAMED_DOCUMENT.findall(text):
            if not (ROOT / name).exists() and not (ROOT / folder / name).exists():
                yield f"names {name}, which does not exist"


def skipped_cleanups(path: Path, text: str) -> Iterator[str]:
    """Yield context managers of tests that clean up after a bare `yield`: if the body fails, nothing is cleaned up.

    What was left running then fails other tests. Guards only check, and a body that failed is reported already.
    """
    if path.suffix != ".py" or path.parts[0] != "tests" or path == GUARDS:
        return
    for function in ast.walk(ast.parse(text)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and any(
            "contextmanager" in ast.unparse(decorator) for decorator in function.decorator_list
        ):
            for node, part in product(ast.walk(function), ("body", "orelse")):
                block: list[ast.stmt] | ast.expr = getattr(node, part, [])
                if isinstance(block, list) and any(map(yields_bare, block[:-1])):
                    yield f"{function.lineno}: {function.name} needs try and finally"


def yields_bare(node: ast.AST) -> bool:
    """Return whether a statement yields outside a `try` with `finally`."""
    if isinstance(node, ast.Try) and node.finalbody:
        return False
    return isinstance(node, ast.Yield) or any(map(yields_bare, ast.iter_child_nodes(node)))


Rule = Callable[[Path, str], Iterator[str]]
RULES: tuple[Rule, ...] = (
    package_indexes,
    machine_paths,
    leftovers,
    giants,
    dead_links,
    dead_paths,
    dead_documents,
    skipped_cleanups,
)


def text_files() -> Iterator[tuple[Path, str]]:
    for path in tracked_files():
        content = (ROOT / path).read_bytes()
        if b"\0" not in content:
            yield path, content.decode()


@pytest.mark.parametrize("rule", RULES)
def test_every_file_keeps_the_rule(rule: Rule) -> None:
    assert [f"{path}: {each}" for path, text in text_files() for each in rule(path, text)] == []


@pytest.mark.parametrize(
    ("rule", "path", "text"),
    [
        pytest.param(package_indexes, "README.md", "from pypi" + ".org", id="index"),
        pytest.param(package_indexes, "Makefile", "pip install --extra-index" + "-url x", id="index_option"),
        pytest.param(package_indexes, "uv.lock", "", id="lock_file"),
        pytest.param(machine_paths, "docs/a.md", "see /" + "home/me/notes", id="home"),
        pytest.param(machine_paths, "a.py", 'X = "/' + 'work/x"', id="work"),
        pytest.param(leftovers, "api/a.py", "# TO" + "DO: later", id="leftover"),
        pytest.param(giants, "api/a.py", "x = 1\n" * (MAX_LINES + 1), id="giant"),
        pytest.param(dead_links, "docs/a.md", "[x](../nowhere.md)", id="link"),
        pytest.param(dead_links, "docs/a.md", "[x](/LICENSE)", id="absolute_link"),
        pytest.param(dead_links, "a.md", "# One\n[x](#two)", id="anchor"),
        pytest.param(dead_links, "a.md", "[x]: nowhere.md", id="reference"),
        pytest.param(dead_links, "a.md", '<img src="nowhere.svg">', id="image"),
        pytest.param(dead_paths, "a.md", "see `tests/nowhere.py`", id="named_path"),
        pytest.param(dead_documents, "api/a.py", "# Source: docs/nowhere.md section 2", id="document"),
        pytest.param(dead_documents, "api/a.py", "# NOWHERE.md", id="document_at_the_top"),
        pytest.param(dead_documents, "zensical.toml", '"scorers/nowhere.md"', id="page"),
        pytest.param(skipped_cleanups, "tests/a.py", f"{MANAGER} with a():\n  yield\n end()", id="cleanup"),
        pytest.param(
            skipped_cleanups,
            "tests/a.py",
            f"{MANAGER} try:\n  yield\n except E:\n  pass\n end()",
            id="one_error",
        ),
    ],
)
def test_rule_finds_violation_when_there_is_one(rule: Rule, path: str, text: str) -> None:
    assert len(list(rule(Path(path), text))) == 1


@pytest.mark.parametrize(
    ("rule", "path", "text"),
    [
        pytest.param(machine_paths, "a.md", "GET http://host/home/x and ~/work/x", id="url_and_home"),
        pytest.param(leftovers, "a.md", "no TO" + "DO here", id="prose"),
        pytest.param(leftovers, "a.sh", "mktemp XXXXXX", id="template"),
        pytest.param(giants, "api/x_pb2.py", "x = 1\n" * (MAX_LINES + 1), id="generated"),
        pytest.param(giants, "api/a.py", "x = 1\n" * MAX_LINES, id="longest"),
        pytest.param(dead_links, "tests/a.md", "[x](../LICENSE) [y](https://example.com/z)", id="links"),
        pytest.param(
            dead_links, "a.md", "# The `x` of\n# The `x` of\n[x](#the-x-of-1)", id="repeated_heading"
        ),
        pytest.param(dead_links, "a.md", "`[x](nowhere.md)`\n```\n[x](nowhere.md)\n```\n", id="link_in_code"),
        pytest.param(dead_documents, "tests/conftest.py", "# CONTRIBUTING.md and a.md", id="documents"),
        pytest.param(dead_documents, "zensical.toml", '"scorers/README.md"', id="page"),
        pytest.param(
            skipped_cleanups, "tests/a.py", f"{MANAGER} try:\n  yield\n finally:\n  end()", id="cleanup"
        ),
        pytest.param(
            dead_paths, "a.md", "`tests/conftest.py`, `application/json` and `tests/`", id="named_paths"
        ),
    ],
)
def test_rule_passes_when_there_is_nothing_wrong(rule: Rule, path: str, text: str) -> None:
    assert list(rule(Path(path), text)) == []


def test_readme_starts_with_the_two_commands() -> None:
    readme = read(Path("README.md"))
    assert "make demo" in readme
    assert "make test" in readme
