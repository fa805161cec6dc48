"""Label selectors as text, in Kubernetes' syntax."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ..filters.label_selector import Operator, RequirementParams

_KEY = r"[A-Za-z0-9]([-A-Za-z0-9_./]*[A-Za-z0-9])?"
_VALUE = r"[-A-Za-z0-9_.]*"
_REQUIREMENT = re.compile(
    rf"\s*(?:(?P<absent>!)\s*)?(?P<key>{_KEY})\s*"
    rf"(?:(?P<equal>==?|!=)\s*(?P<value>{_VALUE})|(?P<set>in|notin)\s*\((?P<values>[^()]*)\))?\s*"
)
_COMMA = re.compile(r",(?![^()]*\))")
"""A comma outside of parentheses."""


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """Conditions on labels, all of which must hold.

    Attributes:
        requirements: the conditions.
    """

    requirements: tuple[RequirementParams, ...]

    @classmethod
    def parse(cls, text: str) -> LabelSelector:
        """Parse a selector such as `app=vllm,tier in (gold,silver),!old`.

        Raises:
            ValueError: not of that form.
        """
        return cls(tuple(map(_parsed, _COMMA.split(text))))

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Return whether it selects something with these labels."""
        return all(each.holds(labels.get(each.key)) for each in self.requirements)


def _parsed(text: str) -> RequirementParams:
    match = _REQUIREMENT.fullmatch(text)
    has_condition = match is not None and (match["equal"] or match["set"])
    if match is None or (match["absent"] and has_condition):
        raise ValueError(f"found {text!r}, expected a condition such as app=vllm, tier in (a,b), key or !key")
    operator: Operator
    values: tuple[str, ...]
    if match["equal"]:
        operator, values = "NotIn" if match["equal"] == "!=" else "In", (match["value"],)
    elif match["set"]:
        operator = "In" if match["set"] == "in" else "NotIn"
        values = tuple(each.strip() for each in match["values"].split(","))
    else:
        operator, values = "DoesNotExist" if match["absent"] else "Exists", ()
    return RequirementParams(key=match["key"], operator=operator, values=values)
