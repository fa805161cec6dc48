"""Configuration as plain data, as it would be in a file."""

from __future__ import annotations

import msgspec

from .policies import keeps_filters, policy_of
from .schema import KVAtlasConfig

_NOT_BESIDE = {"plugins": ("policy", "weights"), "weights": ("plugins", "schedulingProfiles")}
"""Name of a policy -> keys without effect beside it."""


def plain(config: KVAtlasConfig) -> dict[str, object]:
    """Return every key with its value, as in a file: `plugins` with profiles, `policy` and `weights`, or another policy alone.

    A policy that kept filters of plugins is written as plugins too, since no file has both.
    """
    data: dict[str, object] = msgspec.to_builtins(config, enc_hook=str)
    form = "plugins" if keeps_filters(config) else policy_of(config)
    without = _NOT_BESIDE.get(form, ("weights", "plugins", "schedulingProfiles"))
    for key in without:
        del data[key]
    return data
