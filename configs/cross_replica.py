"""`dataLayer.crossReplica` of files of the reference picker, as the section `replicas`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated

from msgspec import Meta, field

from .data_layer import DataLayerConfig
from .decode import decode
from .errors import Problem
from .go_values import duration_problem, duration_s
from .replicas import MIN_SILENT_AFTER_S, ReplicasConfig, ValkeyConfig
from .schema import PluginConfig
from .section import Section
from .units import Duration

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


def redis_syncer(plugins: Sequence[PluginConfig], *layers: DataLayerConfig) -> PluginConfig | None:
    """Return the plugin by which replicas share state through a Redis server, None if none is named.

    Args:
        plugins: of the file, without problems.
        layers: the sections that may name a syncer; the first one that does counts.
    """
    found = _syncer(plugins, layers)
    return found[1] if found is not None and found[1].type in REDIS_SYNCERS else None


def replicas_of(syncer: PluginConfig | None) -> ReplicasConfig:
    """Return the section `replicas` that means the same as a plugin; nothing is shared without one, or if it has problems."""
    params = decode(syncer.parameters, RedisSyncerParams) if syncer is not None else []
    if isinstance(params, list):
        return ReplicasConfig()
    state_s = duration_s(params.state_ttl)
    return ReplicasConfig(
        transport="valkey",
        silent_after=Duration(max(state_s, MIN_SILENT_AFTER_S) if state_s > 0 else STATE_TTL_S),
        valkey=ValkeyConfig(
            address=params.address,
            password_file=params.password_file,
            password_env=params.password_env,
            database=params.db,
        ),
    )


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
