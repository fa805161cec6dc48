"""`decode-filter`: keeps endpoints that decode, for configurations in which some only prefill."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.base import Rng, Verdicts
from ..core.model import Candidate, RequestView
from ..core.params import NoParams
from ..core.registry import Registry

ROLE_LABEL = "llm-d.ai/role"
DECODE_ROLES = frozenset({"decode", "prefill-decode", "both", "encode-prefill-decode"})


class DecodeFilter:
    """Filter that drops endpoints whose label `llm-d.ai/role` excludes decoding, and keeps those without the label."""

    type = "decode-filter"

    def judge(self, request: RequestView, candidates: Sequence[Candidate], *, rng: Rng) -> Verdicts:  # noqa: ARG002 (Filter)
        """Return one verdict per candidate."""
        return [_verdict(candidate.labels.get(ROLE_LABEL)) for candidate in candidates]


def _verdict(role: str | None) -> str | None:
    if role is None or role in DECODE_ROLES:
        return None
    return f"label {ROLE_LABEL} is {role!r}, which does not decode"


def register(registry: Registry) -> None:
    """Register `decode-filter`, which takes no parameters."""
    registry.filters.add(DecodeFilter.type, NoParams, lambda _params, _context: DecodeFilter())
