"""docs/doctor.md compared with the checks: one row each, in order."""

from __future__ import annotations

from kvatlas.api.doctor.checks import CHECKS
from support.tree import ROOT

PAGE = ROOT / "docs" / "doctor.md"


def test_page_lists_every_check() -> None:
    rows = [f"| `{check.name}` | {check.asks} | {'' if check.needs_process else 'yes'} |" for check in CHECKS]

    assert "\n".join(rows) + "\n" in PAGE.read_text()
    assert len({check.name for check in CHECKS}) == len(CHECKS)
