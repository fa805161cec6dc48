"""Published files that the reference refuses, and what kvatlas does with them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kvatlas.configs.errors import ConfigError
from kvatlas.routing.plan.load import load_scheduled
from support.tree import ROOT

FOLDER = ROOT / "tests" / "golden" / "epp-configs"
_REASON = re.compile(r"^\| (\d{3}) \| invalid because (.+?)(?: \(reported first\).*?)? \|", re.MULTILINE)


def refused_rows() -> Iterator[tuple[str, str]]:
    """Yield each reason for which the reference refuses published files, and what kvatlas does with these."""
    found: dict[str, str] = {}
    for number, reason in _REASON.findall((FOLDER / "README.md").read_text()):
        (file,) = FOLDER.glob(f"{number}__*.yaml")
        try:
            load_scheduled(file)
            here = "accepted as an older form"
        except ConfigError:
            here = "refused, too"
        assert found.setdefault(reason, here) == here, f"files differ about: {reason}"
    yield from found.items()
