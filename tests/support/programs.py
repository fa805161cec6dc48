"""Programs that are not Python packages: on PATH, or beside the interpreter (`make test-programs`)."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path


def find_program(*names: str) -> str | None:
    """Return the path of the first of `names` that is found; None if none is."""
    folders = os.pathsep.join((os.environ.get("PATH", ""), str(Path(sys.executable).parent)))
    return next((path for name in names if (path := shutil.which(name, path=folders))), None)
