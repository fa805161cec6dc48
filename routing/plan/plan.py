"""The plan of a configuration: its profile, built, and its tiers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar, cast

import msgspec

from ...configs.decode import decode
from ...configs.errors import KeyPath, Problem
from ...configs.policies import expanded
from ...configs.schema import KVAtlasConfig, PluginConfig, ProfilePluginConfig
from ...configs.words import closest, nearest
from ...scorers.builtin import builtin_registry
from ...scorers.core.base import (
    Handler,
    LoadEstimate,
    ReadsMedia,
)
from ...scorers.core.kv_source import KvSource
from ...scorers.core.params import BuildContext, PluginParams
from ...scorers.core.prefix_source import BurstProducer
from ...scorers.core.profile import Profile
from ...scorers.core.registry import Plugins
from ...scorers.core.scheduler import Deciding, Scheduler
from ...scorers.errors import ParametersError, ProfileError
from ...scorers.handlers.joint_cost import JointCostHandler
from ...scorers.handlers.single import SingleHandler
from ...tokenization.requests.parsers import PARSERS
from ..errors import PluginLoadError, SchedulingError
from ..kv_size import largest_kv_bytes
from ..policy import RequestPolicy
from .built_plugin import BuiltPlugin
from .declared import Declared, context_of, producers_of, unread
from .entry_points import add_offered, offered_plugins
from .known_types import known_types
from .parsing import parser_problems, parsing_policy, unnamed_parsers
from .parts import Parts
from .producers import produced_tiers
from .reference import NO_EFFECT
from .reference_params import NO_EFFECT_PARAMS
from .short_form import profile_of_weights

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Plan:
    """The profile and tiers built from a configuration.

    Attributes:
        config: the configuration, with tiers and event plane as its producers describe them.
        profile: makes the decisions: one profile, or several with a handler.
        notes: plugins that were accepted without effect, one line each.
        references: plugins of the profiles, in their order; empty if the profile is made from `weights`.
        built: (kind, name) -> plugin, for the plugins that act.
        requests: what the configuration has done with requests and responses.
        load: what a request adds to the load of its endpoint, beside its prompt; None for nothing.
        burst: how requests that arrive together are assigned; None if they do not wait for each other.
    """

    config: KVAtlasConfig
    profile: Deciding
    notes: tuple[str, ...] = ()
    references: tuple[ProfilePluginConfig, ...] = ()
    built: Mapping[tuple[str, str], BuiltPlugin] = field(default_factory=dict[tuple[str, str], BuiltPlugin])
    requests: RequestPolicy = field(default_factory=RequestPolicy)
    load: LoadEstimate | None = None
    burst: BurstProducer | None = None


def make_plan(config: KVAtlasConfig, *, before: Plan | None = None) -> Plan:
    """Make the plan of a configuration.

    Args:
        config: the configuration.
        before: a plan whose plugins are kept, with all they learned, if name and parameters are the same; others start
            from scratch.

    Raises:
        SchedulingError: an unknown plugin, parameters that a plugin does not take, or a profile that cannot work.
    """
    if config.plugins and config.policy == "weights" and config.disaggregation.is_on:
        message = "found together with plugins; have joint-cost-handler or disagg-profile-handler among them"
        raise SchedulingError([Problem(message, ("disaggregation",))])
    config = expanded(config)
    if not config.plugins:
        if problems := parser_problems(config):
            raise SchedulingError(problems)
        return Plan(config, profile_of_weights(config), requests=parsing_policy(config))
    return _Planner(config, before.built if before is not None else {}).plan()


def scheduling_problems(config: KVAtlasConfig) -> tuple[Problem, ...]:
    """Return all problems that keep a configuration from having a plan."""
    try:
        make_plan(config)
    except SchedulingError as error:
        return error.problems
    return ()


class _Planner:
    """Makes one plan, and collects every problem."""

    def __init__(self, config: KVAtlasConfig, before: Mapping[tuple[str, str], BuiltPlugin]) -> None:
        self._config, self._before = config, before
        self._registry = builtin_registry()
        self._declared: dict[str, Declared] = {}
        self._used: list[ProfilePluginConfig] = []
        self._all_built: dict[tuple[str, str], BuiltPlugin] = {}
        self._notes: list[str] = []
        self._problems: list[Problem] = []

    def plan(self) -> Plan:
        """Return the plan.

        Raises:
            SchedulingError: see `make_plan`.
        """
        unusable = self._add_offered()
        for number, plugin in enumerate(self._config.plugins):
            if plugin.type in unusable:
                message = f"{plugin.type!r} {unusable[plugin.type]}"
                self._problems.append(Problem(message, ("plugins", number, "type")))
            else:
                self._declare(("plugins", number), plugin)
        self._problems += parser_problems(self._config)
        self._notes += unnamed_parsers(self._config)
        produced = produced_tiers(producers_of(self._declared), self._config)
        requests, load, burst = self._requests(), self._load(), self._burst()
        profile = self._profile(context_of(self._config, self._declared, produced))
        if self._problems or profile is None:
            raise SchedulingError(self._problems)
        config = msgspec.structs.replace(
            self._config,
            tiers=produced.tiers,
            events=produced.events,
            predictions=produced.predictions,
            approximate=produced.approximate,
        )
        notes = tuple(dict.fromkeys(self._notes))
        return Plan(config, profile, notes, tuple(self._used), self._all_built, requests, load, burst)

    def _requests(self) -> RequestPolicy:
        """Build the plugins that act in every request, and check those from whose parameters attributes are read."""
        registry = self._registry
        self._acting(registry.attributes)
        return replace(
            parsing_policy(self._config),
            identities=tuple(plugin for _, plugin in self._acting(registry.identities)),
            reporters=tuple(plugin for _, plugin in self._acting(registry.reporters)),
            answers_models=any(True for _ in self._acting(registry.responders)),
        )

    def _acting(self, plugins: Plugins[T]) -> list[tuple[str, T]]:
        """Return the declared plugins of a kind, by name."""
        built = ((name, self._built(plugins, each, BuildContext())) for name, each in self._declared.items())
        return [(name, plugin) for name, plugin in built if plugin is not None]

    def _add_offered(self) -> dict[str, PluginLoadError]:
        """Register the named types of other packages; returns types that cannot be used, with the reason."""
        unusable: dict[str, PluginLoadError] = {}
        offered = offered_plugins()
        for plugin_type in dict.fromkeys(plugin.type for plugin in self._config.plugins):
            try:
                add_offered(self._registry, plugin_type, offered)
            except PluginLoadError as error:
                unusable[plugin_type] = error
        return unusable

    def _declare(self, path: KeyPath, plugin: PluginConfig) -> None:
        blueprints = {
            kind.kind: found for kind in self._registry.kinds if (found := kind.get(plugin.type)) is not None
        }
        if blueprints:
            self._decode(path, plugin, {kind: found.params for kind, found in blueprints.items()})
        elif plugin.type in PARSERS:
            pass  # see `parsing`
        elif plugin.type in NO_EFFECT:
            self._notes.append(f"plugin {plugin.type} has no effect: {NO_EFFECT[plugin.type]}")
            if (params := NO_EFFECT_PARAMS.get(plugin.type)) is not None:
                self._decoded(path, plugin, params)
        else:
            hint = closest(plugin.type, known_types())
            message = (
                f"found {plugin.type!r}, which kvatlas does not have (--ignore-unknown-plugins leaves it out)"
            )
            self._problems.append(Problem(f"{message}; {hint}", (*path, "type")))

    def _decode(self, path: KeyPath, plugin: PluginConfig, wanted: Mapping[str, type[PluginParams]]) -> None:
        params: dict[str, PluginParams] = {}
        for kind, schema in wanted.items():
            decoded = self._decoded(path, plugin, schema)
            if decoded is None:
                return
            params[kind] = decoded
        self._declared[plugin.known_as] = Declared(path, plugin, params)

    def _decoded(
        self, path: KeyPath, plugin: PluginConfig, schema: type[PluginParams]
    ) -> PluginParams | None:
        """Return the parameters of a plugin; None if they have problems, which are then added."""
        decoded = decode(plugin.parameters, schema)
        if not isinstance(decoded, list):
            return decoded
        self._problems += [Problem(each.message, (*path, "parameters", *each.path)) for each in decoded]
        return None

    def _burst(self) -> BurstProducer | None:
        """Return the first burst producer."""
        for declared in self._declared.values():
            producer = self._built(self._registry.producers, declared, BuildContext())
            if isinstance(producer, BurstProducer):
                return producer
        return None

    def _load(self) -> LoadEstimate | None:
        """Return the first estimate that adds something."""
        for declared in self._declared.values():
            estimate = self._built(self._registry.loads, declared, BuildContext())
            if estimate is not None and estimate.adds_output:
                return estimate
        return None

    def _profile(self, context: BuildContext) -> Deciding | None:
        common = Parts()
        self._add_to_all(common, context)
        names = [each.name for each in self._config.scheduling_profiles] or ["default"]
        deciders = dict(self._acting(self._registry.deciders))
        of_handlers = replace(
            context,
            profiles=tuple(names),
            deciders=deciders,
            stage_headers=next((each for _, each in self._acting(self._registry.stage_headers)), None),
            kv_bytes_per_token=largest_kv_bytes(self._config.served_models)
            if any(each.config.type == JointCostHandler.type for each in self._declared.values())
            else None,
        )
        handler, kv_source = self._handler(of_handlers), self._kv_source(of_handlers)
        if handler is None and kv_source is not None:
            handler = SingleHandler(names[0])
        is_alone = (
            len(names) == 1 and (handler is None or isinstance(handler, SingleHandler)) and kv_source is None
        )
        for second in (number for number, name in enumerate(names) if name in names[:number]):
            message = f"found {names[second]!r}, the name of another profile too"
            self._problems.append(Problem(message, ("schedulingProfiles", second, "name")))
        profiles: dict[str, Profile] = {}
        for number, name in enumerate(names):
            parts = common if is_alone else Parts()
            for path, reference in self._references(number):
                self._used.append(reference)
                own = context.sources.get(reference.plugin_ref)
                self._add(parts, path, reference, replace(context, own=own))
            try:
                profiles[name] = parts.profile()
            except ProfileError as error:
                self._problems.append(Problem(str(error), ("schedulingProfiles", number)))
        if self._problems:
            return None
        self._notes += self._remarks(of_handlers)
        if isinstance(handler, JointCostHandler):
            self._notes += unread(self._config, self._declared, handler)
        if handler is None or is_alone:
            return profiles[names[0]]
        has_common = common.filters or common.admitters or common.predictor is not None
        return Scheduler(
            profiles,
            handler,
            common=common.profile() if has_common else None,
            reads_media=any(isinstance(each, ReadsMedia) for each in deciders.values()),
            kv_source=kv_source,
        )

    def _kv_source(self, context: BuildContext) -> KvSource | None:
        """Return the first finder of servers from which blocks are pulled, None if there is none."""
        found = (
            self._built(self._registry.kv_sources, each, context)
            for each in self._declared.values()
            if "pull source" in each.params
        )
        return next((each for each in found if each is not None), None)

    def _handler(self, context: BuildContext) -> Handler | None:
        """Return the handler, None if there is none: then one profile decides."""
        declared = [each for each in self._declared.values() if "handler" in each.params]
        for second in declared[1:]:
            message = f"found {second.config.type!r}, a second profile handler; keep one"
            self._problems.append(Problem(message, (*second.path, "type")))
        if declared:
            return self._built(self._registry.handlers, declared[0], context)
        is_unusable = any(self._registry.handlers.get(each.type) for each in self._config.plugins)
        if len(context.profiles) > 1 and not is_unusable:
            message = (
                f"found {len(context.profiles)} profiles and no profile handler to run them; add one to plugins, "
                "such as disagg-profile-handler, or keep one profile"
            )
            self._problems.append(Problem(message, ("schedulingProfiles", 1)))
        return None

    def _remarks(self, context: BuildContext) -> Iterator[str]:
        """Yield what has no effect in the parameters of plugins."""
        for name, declared in self._declared.items():
            for params in {type(each): each for each in declared.params.values()}.values():
                for remark in params.remarks(context):
                    yield f"plugin {name}: {remark}"

    def _add_to_all(self, parts: Parts, context: BuildContext) -> None:
        """Add the plugins that act for every profile, and need not be listed in one."""
        predictors = [each for each in self._declared.values() if "predictor" in each.params]
        for second in predictors[1:]:
            message = "found a second predictor; keep one, as kvatlas has one model of latency"
            self._problems.append(Problem(message, (*second.path, "type")))
        for name, declared in self._declared.items():
            own = replace(context, own=context.sources.get(name))
            if (screener := self._built(self._registry.screeners, declared, own)) is not None:
                parts.filters.append((name, screener))
                parts.screeners.append(name)
            if (predictor := self._built(self._registry.predictors, declared, own)) is not None:
                parts.predictor = (name, predictor)
            if (admitter := self._built(self._registry.admitters, declared, own)) is not None:
                parts.admitters.append((name, admitter))

    def _references(self, number: int) -> Iterator[tuple[KeyPath, ProfilePluginConfig]]:
        """Yield the plugins of a profile, each with its path; without any profile, all that can be in one."""
        profiles = self._config.scheduling_profiles
        for profile in profiles[number : number + 1]:
            for position, reference in enumerate(profile.plugins):
                yield ("schedulingProfiles", number, "plugins", position), reference
        for name, declared in () if profiles else self._declared.items():
            if declared.decides:
                yield declared.path, ProfilePluginConfig(plugin_ref=name)

    def _add(
        self, parts: Parts, path: KeyPath, reference: ProfilePluginConfig, context: BuildContext
    ) -> None:
        name, registry = reference.plugin_ref, self._registry
        declared = self._declared.get(name)
        if declared is None:
            self._note_other_kind(name)
            return
        if (built := self._built(registry.filters, declared, context)) is not None:
            parts.filters.append((name, built))
        if (scorer := self._built(registry.scorers, declared, context)) is not None:
            parts.scorers.append((name, scorer, reference.weight))
        if (picker := self._built(registry.pickers, declared, context)) is not None:
            parts.pickers.append(picker)
            if len(parts.pickers) > 1:
                self._problems.append(Problem(f"found {name!r}, a second picker; keep one", path))
        if not declared.decides:
            self._note_other_kind(name)

    def _note_other_kind(self, name: str) -> None:
        """Note a reference to a plugin of another kind, unless its unknown type was reported already."""
        plugin = next((each for each in self._config.plugins if each.known_as == name), None)
        is_without_effect = plugin is None or plugin.type in NO_EFFECT.keys() | PARSERS.keys()
        if name in self._declared or is_without_effect:
            self._notes.append(
                f"plugin {name} has no effect in a profile: it is neither a filter, a scorer nor a picker"
            )

    def _built(self, plugins: Plugins[T], declared: Declared, context: BuildContext) -> T | None:
        """Build a plugin of that kind, once for all profiles.

        None if its type is of another kind, or if it cannot be built: then a problem is added.
        """
        blueprint = plugins.get(declared.config.type)
        if blueprint is None:
            return None
        key, params = (plugins.kind, declared.config.known_as), declared.params[plugins.kind]
        origin = (declared.config.type, params, context)
        before = self._all_built.get(key) or self._before.get(key)
        try:
            if before is not None and before.origin == origin:
                plugin = cast("T", before.plugin)
            else:
                plugin = blueprint.make(params, context)
        except ParametersError as error:
            keys = (error.key,) if error.key else ()
            text = f"{error.message}; {nearest(*error.unknown)}" if error.unknown else error.message
            problem = Problem(text, (*declared.path, "parameters", *keys))
        except PluginLoadError as error:
            problem = Problem(str(error), (*declared.path, "type"))
        except Exception as error:  # noqa: BLE001 - the constructor may be another package's
            message = f"{declared.config.type!r} cannot be built: {type(error).__name__}: {error}"
            problem = Problem(message, declared.path)
        else:
            self._all_built[key] = BuiltPlugin(plugin, origin)
            return plugin
        self._problems.append(problem)
        return None
