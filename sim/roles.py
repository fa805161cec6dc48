"""Roles of simulated servers: prefill, decode, both, or encode."""

from __future__ import annotations

from ..scorers.core.topology import LABELS as TOPOLOGY_LABELS
from ..scorers.core.topology import LEVELS
from .errors import ReplayError
from .limits import MAX_SERVERS

PREFILL, DECODE, BOTH, ENCODE = "prefill", "decode", "both", "encode"
LABELS = {PREFILL: "prefill", DECODE: "decode", BOTH: "prefill-decode", ENCODE: "encode"}
"""Role -> value of the label `llm-d.ai/role`."""

ZONE_LABEL = TOPOLOGY_LABELS[LEVELS.index("zone")]


def parse_roles(text: str) -> tuple[str, ...]:
    """Parse numbers of servers per role, as in `prefill=2,decode=6`; return the role of each server.

    Raises:
        ReplayError: a role does not exist or comes twice, a number is none or too large, or no server decodes.
    """
    roles: list[str] = []
    for part in text.split(","):
        role, _, number = part.strip().partition("=")
        if role not in LABELS or not number.isdecimal():
            known = ", ".join(LABELS)
            raise ReplayError(
                f"roles: found {part!r}, want ROLE=NUMBER with one of {known}, separated by commas"
            )
        if role in roles:
            raise ReplayError(f"roles: found {role!r} twice in {text!r}, want each role once")
        if len(number) > len(str(MAX_SERVERS)) or len(roles) + int(number) > MAX_SERVERS:
            raise ReplayError(
                f"roles: found {number[:20]} servers for {role!r}, want at most {MAX_SERVERS} in all"
            )
        roles += [role] * int(number)
    if not {DECODE, BOTH} & set(roles):
        raise ReplayError(f"roles: found {text!r}, in which no server decodes; add decode=1 or both=1")
    return tuple(roles)


def role_zones(roles: tuple[str, ...], n_zones: int) -> tuple[str, ...]:
    """Return the zone of each server: those of each role take the zones in turn."""
    return tuple(f"zone-{roles[:place].count(role) % n_zones}" for place, role in enumerate(roles))


def role_names(roles: tuple[str, ...]) -> tuple[str, ...]:
    """Return a name per server: its role and its number among those of the same role."""
    return tuple(f"{role}-{roles[:place].count(role)}" for place, role in enumerate(roles))
