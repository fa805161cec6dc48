"""The configuration in force, and the one way it changes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ...configs.changes import Change, changes
from ...configs.discovery import with_listed_endpoints
from ...configs.errors import ConfigError
from ...configs.file_watch import FileState, FileWatch
from ...configs.loader import LoadedConfig
from ...configs.schema import KVAtlasConfig
from ...fleet.errors import ConfigRefusedError
from ..errors import SchedulingError
from .config_files import ConfigFiles
from .metrics import ConfigMetrics
from .plan import Plan, make_plan
from .weights import with_weights

log = logging.getLogger(__name__)

POLL_S = 0.25
"""Time between two looks at the configuration's files."""

MAX_LOGGED_CHANGES = 50
"""Changed keys that are logged one by one; of a fleet that is replaced nobody reads more."""


@dataclass(frozen=True, slots=True)
class ConfigState:
    """Where a process is with its configuration; another goes on from it.

    Attributes:
        generation: of the configuration.
        config: in force, as it was loaded.
        refusals: file -> why what it says is not in force.
        seen: file -> how it was when it was last loaded.
    """

    generation: int
    config: KVAtlasConfig
    refusals: Mapping[str, str] = field(default_factory=dict[str, str])
    seen: Mapping[str, FileState] = field(default_factory=dict[str, FileState])


Switch = Callable[[Plan, int], None]
"""Puts a plan in force as the generation of that number. Raises ConfigRefusedError when it cannot; nothing has changed
then."""


class LiveConfig:
    """What is in force, and what was refused.

    A new configuration is taken whole or refused whole, one after the other.

    Args:
        config: the configuration of the start, generation 1, with the endpoints that its `endpoints.file` lists.
        files: where it came from, None when it came from nowhere that can change.
        prepare: does before what of that takes long and changes nothing; None for nothing.
        switch: puts another in force, between two decisions.
        settle: does what that left to be done in time: frees, shrinks.
        metrics: counters.
        present: where another process of the same kvatlas is; what it has in force counts in place of `config`.

    Raises:
        SchedulingError: the plugins make no profile.
    """

    def __init__(
        self,
        config: KVAtlasConfig,
        *,
        files: ConfigFiles | None,
        switch: Switch,
        settle: Callable[[], Awaitable[None]],
        metrics: ConfigMetrics,
        present: ConfigState | None = None,
        prepare: Callable[[Plan], Awaitable[None]] | None = None,
    ) -> None:
        start = present or ConfigState(1, config)
        self._loaded = start.config
        self.plan = make_plan(start.config)
        """What the configuration in force comes to."""
        self.generation: int = start.generation
        """One more with each configuration that is put in force."""
        self.refusals: dict[str, str] = {}
        """File -> why what it says is not in force."""
        self.tell: Callable[[], Awaitable[None]] = _nobody
        """Called when the generation or the refusals are others."""
        self.files = files
        self._switch, self._settle, self._metrics = switch, settle, metrics
        self._prepare = prepare
        self._watches: dict[Path, FileWatch] = {}
        self._unread: KVAtlasConfig | None = start.config
        """What the files said at the start, until they are looked at for the first time."""
        self._go_on_from(start)
        self._turn = asyncio.Lock()
        metrics.generation.set_function(lambda: self.generation)
        metrics.refused.set_function(lambda: len(self.refusals))

    @property
    def in_force(self) -> KVAtlasConfig:
        """The configuration, with tiers and event plane as its plugins have them."""
        return self.plan.config

    @property
    def state(self) -> ConfigState:
        """For another process to go on from."""
        seen = {str(path): each.reported for path, each in self._watches.items() if each.reported is not None}
        return ConfigState(self.generation, self._loaded, self.refusals.copy(), seen)

    @contextlib.asynccontextmanager
    async def held(self) -> AsyncGenerator[KVAtlasConfig]:
        """The configuration in force, which stays so within: changes wait."""
        async with self._turn:
            yield self.in_force

    async def follow(self, state: ConfigState) -> None:
        """Put in force what another process has, as its generation; nothing happens where that is not a later one.

        Raises:
            ConfigRefusedError: it cannot be put in force; nothing has changed.
        """
        async with self._turn:
            if state.generation >= self.generation:
                self._go_on_from(state)
            if state.generation > self.generation:
                loaded = LoadedConfig(state.config)
                await self._put_in_force(loaded, "sibling", "worker 0", generation=state.generation)

    async def number_from(self, generation: int) -> None:
        """Go on as this generation, where others know a later one than this process."""
        async with self._turn:
            if generation > self.generation:
                self._switch(self.plan, generation)
                self.generation = generation

    async def watch(self, reload: asyncio.Event) -> None:
        """Load the files when they change, and when `reload` is set; for ever."""
        while True:
            await self.look()
            try:
                await asyncio.wait_for(reload.wait(), POLL_S)
            except TimeoutError:
                continue
            reload.clear()
            await self.reload()

    async def look(self) -> None:
        """Look at the files, and load what has changed; the first time whatever they say."""
        paths = self.files.paths if self.files is not None else ()
        if any([await self._has_changed(path) for path in paths]):
            await self._load_config("file")
        listed = Path(self._loaded.endpoints.file) if self._loaded.endpoints.file else None
        if listed is not None and await self._has_changed(listed):
            await self._load_endpoints("file")
        for path in self._watches.keys() - {*paths, listed}:  # another endpoints.file took its place
            del self._watches[path]
            self.refusals.pop(str(path), None)

    async def reload(self) -> None:
        """Load the files as they are, changed or not."""
        await self._load_config("signal")
        await self._load_endpoints("signal")

    async def set_weights(self, weights: Mapping[str, object]) -> list[Change]:
        """Change the weights named, until the configuration file is loaded again; returns what changed.

        Raises:
            ConfigError: a name or value is impossible; nothing has changed.
            ConfigRefusedError: it cannot be put in force; nothing has changed.
        """
        async with self._turn:
            try:
                config = with_weights(self._loaded, self.plan, weights)
                found = await self._put_in_force(LoadedConfig(config), "rest", "PUT /v1/weights")
            except (ConfigError, ConfigRefusedError):
                self._metrics.loaded("rest", "refused")
                raise
        await self.tell()
        return found

    def _go_on_from(self, state: ConfigState) -> None:
        """Take over all but the configuration itself."""
        self.refusals = dict(state.refusals)
        self._watches = {
            Path(path): FileWatch(Path(path), reported=each) for path, each in state.seen.items()
        }

    def plan_with(self, weights: Mapping[str, object]) -> Plan:
        """What the configuration in force would come to with other weights for those named. Changes nothing.

        Raises:
            ConfigError: a name or value is impossible.
        """
        return make_plan(with_weights(self._loaded, self.plan, weights), before=self.plan)

    async def _has_changed(self, path: Path) -> bool:
        watch = self._watches.setdefault(path, FileWatch(path))
        return await asyncio.to_thread(watch.settled)  # a network file system may be slow

    async def _load_config(self, why: str) -> None:
        files = self.files
        if files is not None:
            name = " and ".join(map(str, files.paths))
            await self._load(name, why, lambda: files.load(self._loaded))

    async def _load_endpoints(self, why: str) -> None:
        if self._loaded.endpoints.file:
            await self._load(
                self._loaded.endpoints.file, why, lambda: LoadedConfig(with_listed_endpoints(self._loaded))
            )

    async def _load(self, name: str, why: str, read: Callable[[], LoadedConfig]) -> None:
        refusal: str | None = None
        async with self._turn:
            try:
                loaded = await asyncio.to_thread(read)  # a long list takes a while
                unread, self._unread = self._unread, None
                if why == "file" and loaded.config == unread:  # weights that were set meanwhile stay
                    self._metrics.loaded(why, "unchanged")
                else:
                    await self._put_in_force(loaded, why, name)
            except (ConfigError, ConfigRefusedError) as error:
                refusal = str(error)
        self.refusals.pop(name, None)
        if refusal is not None:
            self.refusals[name] = refusal
            self._metrics.loaded(why, "refused")
            log.error("configuration generation %d stays in force: %s", self.generation, refusal)
        await self.tell()

    async def _put_in_force(
        self, loaded: LoadedConfig, why: str, origin: str, *, generation: int | None = None
    ) -> list[Change]:
        try:
            plan = make_plan(loaded.config, before=self.plan)
            found = _live_changes(self.in_force, plan.config)
            if found or generation is not None:
                generation = generation or self.generation + 1
                if self._prepare is not None:
                    await self._prepare(plan)
                self._switch(plan, generation)
        except (ConfigRefusedError, SchedulingError) as error:
            raise ConfigRefusedError(f"{origin}: {error}") from error
        self._loaded = loaded.config
        if generation is None:
            self._metrics.loaded(why, "unchanged")
            return found
        self.plan = plan
        self.generation = generation
        self._metrics.loaded(why, "applied")
        self._tell(found, (*loaded.notes, *plan.notes), origin)
        await self._settle()
        return found

    def _tell(self, found: list[Change], notes: tuple[str, ...], origin: str) -> None:
        log.info("configuration generation %d is in force (%s):", self.generation, origin)
        for change in found[:MAX_LOGGED_CHANGES]:
            log.info("  %s", change)
        if len(found) > MAX_LOGGED_CHANGES:
            log.info("  and %d more", len(found) - MAX_LOGGED_CHANGES)
        for note in notes:
            log.info("  %s", note)


async def _nobody() -> None:
    """Tells nobody."""


def _live_changes(old: KVAtlasConfig, new: KVAtlasConfig) -> list[Change]:
    """What differs.

    Raises:
        ConfigRefusedError: something that needs a restart.
    """
    found = changes(old, new)
    fixed = [change for change in found if not change.is_live]
    if fixed:
        raise ConfigRefusedError(f"needs a restart: {'; '.join(map(str, fixed))}")
    return found
