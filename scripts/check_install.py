"""Check of the kvatlas that is installed: its native modules load, and its command starts.

Use: ENVIRONMENT/bin/python scripts/check_install.py
"""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module, metadata
from pathlib import Path


def main() -> None:
    """Exit with status 1 and a message if something is missing."""
    files = metadata.files("kvatlas") or []
    native = [file for file in files if file.name.startswith("_native.") and file.suffix == ".so"]
    if not native:
        sys.exit("no native module is installed: the build had no C++20 compiler")
    for file in native:
        import_module(".".join((*file.parts[:-1], "_native")))
    command = [str(Path(sys.executable).with_name("kvatlas")), "--help"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    print(f"kvatlas {metadata.version('kvatlas')} works, with {len(native)} native modules")


if __name__ == "__main__":
    main()
