"""A recorder of kubectl's output for `deploy/`, into `tests/golden/kubectl-*`.

Use, from the repository, with kubectl 1.21 or newer: `PYTHONPATH=tests .venv/bin/python -m support.make_manifests`
"""

from __future__ import annotations

import subprocess

import yaml

from support.manifests import GOLDEN, GUIDE, OVERLAYS, REFERENCE_PICKER, SIDECAR


def kubectl(*arguments: str, stdin: bytes = b"") -> bytes:
    """Return the output of kubectl."""
    return subprocess.run(["kubectl", *arguments], input=stdin, stdout=subprocess.PIPE, check=True).stdout


def main() -> None:
    """Write one file per overlay, and one for the sidecar."""
    for overlay in OVERLAYS:
        made = kubectl("kustomize", str(GUIDE / "overlays" / overlay))
        (GOLDEN / f"{overlay}.yaml").write_bytes(made)
    patch = ("--type=json", "--patch-file", str(SIDECAR / "patch.yaml"))
    made = kubectl(
        *("patch", "--local", *patch, "-f", "-", "-o", "yaml"),
        stdin=yaml.safe_dump(REFERENCE_PICKER).encode(),
    )
    (GOLDEN / "sidecar.yaml").write_bytes(made)


if __name__ == "__main__":
    main()
