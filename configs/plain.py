"""A configuration as plain data: what a file would say."""

from __future__ import annotations

import msgspec

from .schema import KVAtlasConfig


def plain(config: KVAtlasConfig) -> dict[str, object]:
    """Every key with its value, as a file would have it: plugins stand in place of weights, or the other way round."""
    data: dict[str, object] = msgspec.to_builtins(config, enc_hook=str)
    for key in ("weights",) if config.plugins else ("plugins", "schedulingProfiles"):
        del data[key]
    return data
