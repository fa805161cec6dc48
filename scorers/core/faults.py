"""Faults of plugins, which may be third-party code."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PluginFault:
    """An invalid result of one plugin in one decision.

    Attributes:
        name: the plugin's name in the profile.
        reason: bounded word for counters: `raised`, `wrong_length`, `wrong_answer`, `not_finite` or `out_of_range`.
        detail: the same for people, one line.
    """

    name: str
    reason: str
    detail: str
