"""Configuration as plain data, as it would be in a file."""

from __future__ import annotations

import msgspec

from .policies import policy_of
from .schema import KVAtlasConfig

_NOT_BESIDE = {"plugins": ("policy", "weights"), "weights": ("plugins", "schedulingProfiles")}
"""Name of a policy -> keys without effect beside it."""


def plain(config: KVAtlasConfig) -> dict[str, object]:
    """Return every key with its value, as in a file: `plugins` with profiles, `policy` and `weights`, or another policy alone."""
    data: dict[str, object] = msgspec.to_builtins(config, enc_hook=str)
    without = _NOT_BESIDE.get(policy_of(config), ("weights", "plugins", "schedulingProfiles"))
    for key in without:
        del data[key]
    return data
