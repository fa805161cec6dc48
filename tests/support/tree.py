"""The files of this repository, as a commit would hold them."""

from __future__ import annotations

import ast
import gc
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# The folders of .gitignore, for a source tree without .git.
_NOT_OURS = frozenset({".venv", ".git", "build", "dist", ".demo", "__pycache__"})


@cache
def tracked_files() -> tuple[Path, ...]:
    """List regular files relative to `ROOT`, sorted: committed and new ones, neither ignored ones nor links."""
    if (ROOT / ".git").exists():
        command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listing = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found = {Path(name) for name in listing.split("\0") if name}
    else:
        found = {
            path.relative_to(ROOT) for path in ROOT.rglob("*") if not _is_left_behind(path.relative_to(ROOT))
        }
    return tuple(sorted(path for path in found if (ROOT / path).is_file() and not (ROOT / path).is_symlink()))


def _is_left_behind(path: Path) -> bool:
    tool_caches = any(part.endswith(("_cache", ".egg-info")) or part == ".hypothesis" for part in path.parts)
    return tool_caches or not _NOT_OURS.isdisjoint(path.parts)


def read(path: Path) -> str:
    """Return the text of the file at `path`, relative to `ROOT`."""
    return (ROOT / path).read_text(encoding="utf-8")


def syntax_tree(source: str) -> ast.Module:
    """Return the syntax tree of Python source.

    CPython before 3.11.8 raises SystemError if a garbage collection meanwhile causes another parse (gh-106905).
    """
    gc.disable()
    try:
        return ast.parse(source)
    finally:
        gc.enable()


def imports(source: str, path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and absolute name of each import, `kvatlas.events.model.Seq` for a relative import."""
    package = ("kvatlas", *path.parent.parts)
    for node in ast.walk(syntax_tree(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else ()
            module = ".".join((*base, *(node.module or "").split("."))).rstrip(".")
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)
