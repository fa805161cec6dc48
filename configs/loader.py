"""Loader of configuration files into typed data."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar, cast

from msgspec import Struct
from msgspec.structs import fields
from msgspec.structs import replace as replace_fields

from .checks import check_config
from .decode import decode
from .describe import found
from .endpoint_picker import KIND, EndpointPickerConfig, check_endpoint_picker, kvatlas_config
from .endpoint_picker import notes as reference_notes
from .errors import ConfigError, Problem
from .estimate import EstimateConfig
from .nulls import without_nulls
from .paths import with_absolute_paths
from .policies import policy_problems
from .reading import GivenText, read_document
from .replica_checks import replica_notes
from .schema import AdmissionConfig, EndpointsConfig, KVAtlasConfig, ModelConfig, TokenizationConfig
from .scraping import MetricsScrapeConfig

S = TypeVar("S", bound=Struct)

Check = Callable[[KVAtlasConfig], Iterable[Problem]]
"""Function that finds problems in a configuration whose types are valid; the loader adds their lines."""


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """Content of a configuration file.

    Attributes:
        config: the configuration, with every default filled in.
        notes: settings that have no effect although they were set, one line each.
        is_reference: whether the file is one of the reference alone, with nothing of ours.
    """

    config: KVAtlasConfig
    notes: tuple[str, ...] = ()
    is_reference: bool = False


def load_config(path: str | Path) -> KVAtlasConfig:
    """Load the configuration in the YAML file `path`; see `load_file`."""
    return load_file(path).config


def load_file(
    path: str | Path | GivenText, *, check: Check | None = None, base: KVAtlasConfig | None = None
) -> LoadedConfig:
    """Load the configuration in the YAML file `path`, with every default filled in.

    Relative paths become absolute, starting from the folder of the file.

    Args:
        path: a `KVAtlasConfig`, or an `EndpointPickerConfig` of the reference.
        check: finds further problems once there are no others.
        base: a configuration that gets the plugins and profiles of the file, which must then be an `EndpointPickerConfig`.

    Raises:
        ConfigError: the file cannot be read, is not YAML, or violates the schema or the checks; lists every problem with
            its line and the path of the key.
    """
    document = read_document(path)
    loaded = _loaded(document.data, base)
    problems = loaded if isinstance(loaded, list) else list(check(loaded.config)) if check is not None else []
    if isinstance(loaded, list) or problems:
        placed = [replace(each, line=document.line_of(each.path)) for each in problems]
        raise ConfigError(str(path), sorted(placed, key=lambda each: each.line or 0))
    folder = Path() if isinstance(path, GivenText) else Path(path).parent
    return replace(loaded, config=with_absolute_paths(loaded.config, folder.absolute()))


def _loaded(data: object, base: KVAtlasConfig | None) -> LoadedConfig | list[Problem]:
    keys = _keys(data)
    kind = keys.get("kind")
    if kind == KIND:
        return _endpoint_picker(data, base)
    if base is not None:
        return [
            Problem(
                f"found {found(kind)}, expected {KIND!r} together with another configuration file", ("kind",)
            )
        ]
    if keys and kind != "KVAtlasConfig":
        shown = f"found {found(kind)}" if "kind" in keys else "missing"
        return [Problem(f"{shown}, expected 'KVAtlasConfig' or {KIND!r}", ("kind",))]
    config = decode(data, KVAtlasConfig)
    if isinstance(config, list):
        return config
    problems = check_config(config)
    problems += policy_problems(config, keys)
    has_idle_weights = "weights" in keys and config.policy != "weights"
    notes = [f"weights: no effect with policy {config.policy!r}"] if has_idle_weights else []
    return problems or LoadedConfig(config, (*notes, *replica_notes(config)))


def _keys(data: object) -> dict[object, object]:
    return cast("dict[object, object]", data) if isinstance(data, dict) else {}


def _endpoint_picker(data: object, base: KVAtlasConfig | None) -> LoadedConfig | list[Problem]:
    picker = decode(without_nulls(data), EndpointPickerConfig)
    if isinstance(picker, list):
        return picker
    if problems := check_endpoint_picker(picker):
        return problems
    config, remarks = kvatlas_config(picker), reference_notes(picker)
    if base is not None:
        if base.policy != "weights":
            message = f"found plugins together with policy {base.policy!r} of the other configuration file; remove one"
            return [Problem(message, ("plugins",))]
        endpoints = config.endpoints
        if base.endpoints != EndpointsConfig():
            if endpoints.file:
                remarks.append(
                    "dataLayer.discovery: no effect, since the other configuration file names the endpoints"
                )
            endpoints = base.endpoints
        config = replace_fields(
            base,
            plugins=config.plugins,
            scheduling_profiles=config.scheduling_profiles,
            endpoints=endpoints,
            metrics_scrape=_with_engines(base.metrics_scrape, config.metrics_scrape),
            admission=_with_thresholds(base.admission, config.admission),
            model=_with_tokenizer(base, config),
            tokenization=_with_estimate(base.tokenization, config.tokenization),
            request_handler=_own_or(base.request_handler, config.request_handler),
            replicas=_own_or(base.replicas, config.replicas),
        )
    return LoadedConfig(config, tuple(remarks), is_reference=base is None)


def _own_or(own: S, other: S) -> S:
    """Return `own`, or `other` if it has its default."""
    return own if own != type(own)() else other


def _with_engines(own: MetricsScrapeConfig, other: MetricsScrapeConfig) -> MetricsScrapeConfig:
    """Return `own` with the engines of `other`, and its other keys for those that have their default in `own`."""
    default = MetricsScrapeConfig()
    changes = {
        field.name: getattr(other, field.name)
        for field in fields(MetricsScrapeConfig)
        if getattr(own, field.name) == getattr(default, field.name)
    }
    return replace_fields(own, **{**changes, "engines": {**other.engines, **own.engines}})


def _with_tokenizer(own: KVAtlasConfig, other: KVAtlasConfig) -> ModelConfig:
    """Return the model of `own`, with the remote tokenizer of `other` if it has no tokenizer of its own."""
    model = own.model
    if model.tokenizer or model.remote_tokenizer.url or own.models:
        return model
    return replace_fields(model, remote_tokenizer=other.model.remote_tokenizer)


def _with_estimate(own: TokenizationConfig, other: TokenizationConfig) -> TokenizationConfig:
    """Return `own` with the estimate of `other` if it has its default."""
    return own if own.estimate != EstimateConfig() else replace_fields(own, estimate=other.estimate)


def _with_thresholds(own: AdmissionConfig, other: AdmissionConfig) -> AdmissionConfig:
    """Return `own` with the thresholds of `other` for those that have their default in `own`."""
    default = AdmissionConfig()
    changes = {
        field.name: getattr(other, field.name)
        for field in fields(AdmissionConfig)
        if field.name != "objectives" and getattr(own, field.name) == getattr(default, field.name)
    }
    return replace_fields(own, **changes)
