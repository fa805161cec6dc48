"""Configuration as plain data, as it would be in a file."""

from __future__ import annotations

import msgspec

from .schema import KVAtlasConfig


def plain(config: KVAtlasConfig) -> dict[str, object]:
    """Return every key with its value, as in a file: either `plugins` with profiles, or `weights`."""
    data: dict[str, object] = msgspec.to_builtins(config, enc_hook=str)
    for key in ("weights",) if config.plugins else ("plugins", "schedulingProfiles"):
        del data[key]
    return data
