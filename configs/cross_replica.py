"""`dataLayer.crossReplica` of files of the reference picker, as the section `replicas`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated

from msgspec import Meta, field

from .data_layer import DataLayerConfig
from .decode import decode
from .errors import Problem
from .go_values import duration_problem, duration_s
from .schema import PluginConfig
from .section import Section

REDIS_SYNCERS = frozenset({"redis-syncer", "redis-state-store"})
"""Types that share state through a Redis server; the second is an alias."""

LOCAL_SYNCER = "local-syncer"
"""Type that shares state within one process, which is what kvatlas does without other replicas."""

STATE_TTL_S = 2.0
"""Default of `stateTTL`, in place of one that is not above 0."""

_ADDRESS = re.compile(r"(.+):(\d{1,5})")


class RedisSyncerParams(Section, frozen=True):
    """Parameters of `redis-syncer`. A password in the file itself is refused, as the reference does."""

    address: str = "localhost:6379"
    """`HOST:PORT` of the server."""
    db: Annotated[int, Meta(ge=0, le=65535)] = 0
    """Database."""
    password_env: str = ""
    """Environment variable with the password."""
    password_file: str = ""
    """File with the password."""
    state_ttl: str = field(default="2s", name="stateTTL")
    """Time after which what a silent replica has in flight no longer counts."""
    coordination_ttl: str = field(default="180s", name="coordinationTTL")
    """Accepted without effect: kvatlas keeps nothing on the server."""


class LocalSyncerParams(Section, frozen=True):
    """Parameters of `local-syncer`: none."""


def replicas_section(plugins: Sequence[PluginConfig], *layers: DataLayerConfig) -> Mapping[str, object]:
    """Return the section `replicas` that means the same, in the form of a file; empty if nothing is shared.

    Args:
        plugins: of the file, without problems.
        layers: the sections that may name a syncer; the first one that does counts.
    """
    found = _syncer(plugins, layers)
    if found is None or found[1].type not in REDIS_SYNCERS:
        return {}
    params = decode(found[1].parameters, RedisSyncerParams)
    if isinstance(params, list):
        return {}
    server: dict[str, object] = {"address": params.address, "database": params.db}
    if params.password_file:
        server["passwordFile"] = params.password_file
    if params.password_env:
        server["passwordEnv"] = params.password_env
    silent_s = duration_s(params.state_ttl)
    return {
        "transport": "valkey",
        "silentAfter": f"{silent_s if silent_s > 0 else STATE_TTL_S:.12g}s",
        "valkey": server,
    }


def syncer_problems(plugins: Sequence[PluginConfig], *layers: DataLayerConfig) -> Iterator[Problem]:
    """Yield the problems of the parameters of the syncer in force."""
    found = _syncer(plugins, layers)
    if found is None:
        return
    number, plugin = found
    path = ("plugins", number, "parameters")
    if plugin.type == LOCAL_SYNCER:
        none = decode(plugin.parameters, LocalSyncerParams)
        problems: Iterable[Problem] = none if isinstance(none, list) else ()
    elif plugin.type in REDIS_SYNCERS:
        params = decode(plugin.parameters, RedisSyncerParams)
        problems = params if isinstance(params, list) else _redis_problems(params)
    else:
        problems = [
            Problem(f"found {plugin.type!r}, expected the type of a syncer: local-syncer or redis-syncer")
        ]
        path = ("plugins", number, "type")
    for problem in problems:
        yield Problem(problem.message, (*path, *problem.path))


def _redis_problems(params: RedisSyncerParams) -> Iterator[Problem]:
    match = _ADDRESS.fullmatch(params.address)
    if match is None or not 0 < int(match[2]) < 2**16:
        yield Problem(f"found {params.address!r}, expected HOST:PORT", ("address",))
    if params.password_env and params.password_file:
        yield Problem(f"found {params.password_env!r} together with passwordFile; keep one", ("passwordEnv",))
    yield from duration_problem(("stateTTL",), params.state_ttl)
    yield from duration_problem(("coordinationTTL",), params.coordination_ttl)


def _syncer(
    plugins: Sequence[PluginConfig], layers: Sequence[DataLayerConfig]
) -> tuple[int, PluginConfig] | None:
    """Return position and entry of the plugin that synchronizes replicas, None if none is named or it does not exist."""
    names = [
        name
        for layer in layers
        for name in (layer.cross_replica.syncer_plugin_ref, layer.cross_replica_syncer_plugin_ref)
        if name is not None
    ]
    for number, plugin in enumerate(plugins):
        if names and plugin.known_as == names[0]:
            return number, plugin
    return None
