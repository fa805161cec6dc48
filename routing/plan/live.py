"""The configuration in force, and the one way to change it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from pathlib import Path

from ...configs.changes import Change, changes
from ...configs.errors import ConfigError
from ...configs.loader import LoadedConfig
from ...configs.policies import with_shadow
from ...configs.schema import KVAtlasConfig
from ...configs.section import PolicyName
from ...fleet.errors import ConfigRefusedError
from ..errors import SchedulingError
from .capacities import with_capacities
from .metrics import ConfigMetrics
from .plan import Plan, make_plan
from .rest_changes import in_place, with_changes
from .weights import with_weights

log = logging.getLogger(__name__)

MAX_LOGGED_CHANGES = 50
"""Most changed keys that are logged one by one; a replaced fleet would fill the log."""


Switch = Callable[[Plan, int], None]
"""Puts a plan in force as the generation of that number. Raises ConfigRefusedError, with nothing changed, if it cannot."""


class LiveConfig:
    """The configuration in force, and the files that were refused.

    A new configuration is accepted or refused as a whole, one after the other.

    Args:
        config: the configuration of the start, generation 1, with the endpoints that its `endpoints.file` lists.
        paths: files of the configuration, which operators are shown.
        prepare: slow work before a switch, which changes nothing; None if there is none.
        switch: puts a plan in force, between two decisions.
        settle: slow work after a switch: frees and shrinks.
        metrics: counters.

    Raises:
        SchedulingError: the plugins make no profile.
    """

    def __init__(
        self,
        config: KVAtlasConfig,
        *,
        paths: tuple[Path, ...] = (),
        switch: Switch,
        settle: Callable[[], Awaitable[None]],
        metrics: ConfigMetrics,
        prepare: Callable[[Plan], Awaitable[None]] | None = None,
    ) -> None:
        self.loaded = config
        """The configuration in force, as it was loaded."""
        self.plan = make_plan(config)
        """The plan of the configuration in force."""
        self.generation: int = 1
        """Incremented with each configuration that is put in force."""
        self.refusals: dict[str, str] = {}
        """File -> why its content is not in force."""
        self.on_change: Callable[[], Awaitable[None]] = _notify_nobody
        """Called after the generation or the refusals changed."""
        self.on_file: Callable[[], None] = _do_nothing
        """Called after a configuration file was loaded, which ends what REST changed."""
        self._file = config
        """The configuration as its file had it."""
        self.paths = paths
        self._switch, self._settle, self._metrics = switch, settle, metrics
        self._prepare = prepare
        self._unread: KVAtlasConfig | None = config
        """Content of the files at the start, until their first check."""
        self._turn = asyncio.Lock()
        metrics.generation.set_function(lambda: self.generation)
        metrics.refused.set_function(lambda: len(self.refusals))

    @property
    def in_force(self) -> KVAtlasConfig:
        """The configuration, with tiers and event plane as its plugins describe them."""
        return self.plan.config

    @contextlib.asynccontextmanager
    async def held(self) -> AsyncGenerator[KVAtlasConfig]:
        """Yield the configuration in force, and delay changes until the end of the block."""
        async with self._turn:
            yield self.in_force

    def check_changes(self, values: Mapping[str, object]) -> None:
        """Check what REST changed on another replica, in place of all that it changed before. Nothing changes.

        Raises:
            ConfigError: a name or value is impossible.
            ConfigRefusedError: it cannot be put in force.
        """
        try:
            plan = make_plan(with_changes(self.loaded, self._file, values), before=self.plan)
        except SchedulingError as error:
            raise ConfigRefusedError(str(error)) from error
        _live_changes(self.in_force, plan.config)

    async def put_changes(
        self, values: Mapping[str, object], *, origin: str, generation: int
    ) -> list[Change]:
        """Put in force what REST changed here or on another replica, in place of all that it changed before.

        Args:
            values: see `with_changes`.
            origin: for the log.
            generation: of the configuration from then on, unless it has a later one.
        Raises:
            ConfigError: a name or value is impossible; nothing has changed.
            ConfigRefusedError: it cannot be put in force; nothing has changed.
        """
        async with self._turn:
            try:
                loaded = LoadedConfig(with_changes(self.loaded, self._file, values))
                later = max(generation, self.generation)
                return await self._put_in_force(loaded, "rest", origin, generation=later)
            except SchedulingError as error:
                self._metrics.loaded("rest", "refused")
                raise ConfigRefusedError(f"{origin}: {error}") from error
            except (ConfigError, ConfigRefusedError):
                self._metrics.loaded("rest", "refused")
                raise

    async def load(
        self, name: str, why: str, read: Callable[[], LoadedConfig], *, is_list: bool = False
    ) -> None:
        """Read a configuration and put it in force, or keep why it is refused.

        Args:
            name: of the file or files, for the log and for refusals.
            why: label of counters: `file` or `signal`.
            read: reads the file; called in a thread, while no other change is made.
            is_list: whether it is a list of endpoints alone, so that what REST changed stays.
        """
        refusal: str | None = None
        async with self._turn:
            try:
                loaded = await asyncio.to_thread(read)  # a long list takes a while
                unread, self._unread = self._unread, None
                if why == "file" and loaded.config == unread:  # weights that were set meanwhile stay
                    self._metrics.loaded(why, "unchanged")
                else:
                    await self._put_in_force(loaded, why, name)
                    if not is_list:
                        self._file = loaded.config
                        self.on_file()
            except (ConfigError, ConfigRefusedError) as error:
                refusal = str(error)
        self.refusals.pop(name, None)
        if refusal is not None:
            self.refusals[name] = refusal
            self._metrics.loaded(why, "refused")
            log.error("configuration generation %d stays in force: %s", self.generation, refusal)
        await self.on_change()

    async def set_weights(self, weights: Mapping[str, object]) -> list[Change]:
        """Change the weights named, until the configuration file is loaded again; returns what changed.

        Raises:
            ConfigError: a name or value is impossible; nothing has changed.
            ConfigRefusedError: it cannot be put in force; nothing has changed.
        """
        return await self._set("PUT /v1/weights", lambda: with_weights(self.loaded, self.plan, weights))

    async def set_policy(self, policy: PolicyName) -> list[Change]:
        """Change the policy, in place of plugins if there are any, until the configuration file is loaded again.

        Raises:
            ConfigRefusedError: it cannot be put in force; nothing has changed.
        """
        return await self._set("PUT /v1/policy", lambda: in_place(self.loaded, policy))

    async def set_shadow(self, policy: PolicyName | None) -> list[Change]:
        """Have a policy decide on live requests without effect, until the configuration file is loaded again.

        Args:
            policy: None for no shadow.
        """
        return await self._set("PUT /v1/shadow", lambda: with_shadow(self.loaded, policy))

    async def set_capacities(self, capacities: Mapping[str, object]) -> list[Change]:
        """Change the capacities of the tiers named, until the configuration file is loaded again; returns what changed.

        Raises:
            ConfigError: a name or value is impossible; nothing has changed.
            ConfigRefusedError: it cannot be put in force; nothing has changed.
        """
        return await self._set(
            "PUT /v1/capacities", lambda: with_capacities(self.loaded, self.in_force, capacities)
        )

    async def _set(self, origin: str, changed: Callable[[], KVAtlasConfig]) -> list[Change]:
        """Put in force the configuration that `changed` returns, which is called while no other change is made."""
        async with self._turn:
            try:
                found = await self._put_in_force(LoadedConfig(changed()), "rest", origin)
            except (ConfigError, ConfigRefusedError):
                self._metrics.loaded("rest", "refused")
                raise
        await self.on_change()
        return found

    def plan_with(self, weights: Mapping[str, object]) -> Plan:
        """Return the plan of the configuration in force with new weights for the named scorers. Nothing changes.

        Raises:
            ConfigError: a name or value is impossible.
        """
        return make_plan(with_weights(self.loaded, self.plan, weights), before=self.plan)

    async def _put_in_force(
        self, loaded: LoadedConfig, why: str, origin: str, *, generation: int | None = None
    ) -> list[Change]:
        try:
            plan = make_plan(loaded.config, before=self.plan)
            found = _live_changes(self.in_force, plan.config)
            if found or generation is not None:
                generation = generation or self.generation + 1
                await self._switch_or_back(plan, generation)
        except (ConfigRefusedError, SchedulingError) as error:
            raise ConfigRefusedError(f"{origin}: {error}") from error
        self.loaded = loaded.config
        if generation is None:
            self._metrics.loaded(why, "unchanged")
            return found
        self.plan = plan
        self.generation = generation
        self._metrics.loaded(why, "applied")
        self._log_changes(found, (*loaded.notes, *plan.notes), origin)
        try:
            await self._settle()
        except Exception:
            # the change is in force, and whoever made it has to know that
            log.exception(
                "configuration generation %d is in force, but what it frees is not all freed", self.generation
            )
        return found

    async def _switch_or_back(self, plan: Plan, generation: int) -> None:
        """Prepare a plan and put it in force. After any error, the one before is in force as a whole.

        Raises:
            ConfigRefusedError: it cannot be put in force.
        """
        try:
            if self._prepare is not None:
                await self._prepare(plan)
            self._switch(plan, generation)
        except ConfigRefusedError:
            raise
        except Exception as error:  # a fault of ours, which may have come after a part of the work
            log.exception("a configuration could not be put in force; the one before is applied again")
            self._switch(self.plan, self.generation)
            raise ConfigRefusedError(f"it failed with {type(error).__name__}: {error}") from error

    def _log_changes(self, found: list[Change], notes: tuple[str, ...], origin: str) -> None:
        log.info("configuration generation %d is in force (%s):", self.generation, origin)
        for change in found[:MAX_LOGGED_CHANGES]:
            log.info("  %s", change)
        if len(found) > MAX_LOGGED_CHANGES:
            log.info("  and %d more", len(found) - MAX_LOGGED_CHANGES)
        for note in notes:
            log.info("  %s", note)


async def _notify_nobody() -> None:
    """Do nothing."""


def _do_nothing() -> None:
    """Do nothing."""


def _live_changes(old: KVAtlasConfig, new: KVAtlasConfig) -> list[Change]:
    """Return the changes.

    Raises:
        ConfigRefusedError: a change needs a restart.
    """
    found = changes(old, new)
    fixed = [change for change in found if not change.is_live]
    if fixed:
        raise ConfigRefusedError(f"needs a restart: {'; '.join(map(str, fixed))}")
    return found
