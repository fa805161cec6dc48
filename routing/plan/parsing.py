"""The parsers that a configuration names."""

from __future__ import annotations

from collections.abc import Iterator

from ...configs.errors import KeyPath, Problem
from ...configs.schema import KVAtlasConfig
from ...configs.words import nearest
from ...tokenization.requests.parsers import PARSERS, BodyParser
from ..policy import RequestPolicy


def parsing_policy(config: KVAtlasConfig) -> RequestPolicy:
    """Return the part of the policy that no plugin but the parsers describes; a wrong name is left out."""
    types = tuple(kind for _, _, kind in _named(config) if kind in PARSERS)
    parser = BodyParser(types, max_cost=config.tokenization.max_reading_cost)
    return RequestPolicy(parser, propagates_priority=config.request_handler.propagate_priority)


def parser_problems(config: KVAtlasConfig) -> list[Problem]:
    """Return a problem for each name that is not a parser's."""
    known = sorted({*PARSERS, *(each.known_as for each in config.plugins if each.type in PARSERS)})
    return [
        Problem(f"found {name!r}, expected a parser; {nearest(name, known)}", path)
        for path, name, kind in _named(config)
        if kind not in PARSERS
    ]


def unnamed_parsers(config: KVAtlasConfig) -> list[str]:
    """Return a note for each parser that is declared and not named."""
    named = {each.plugin_ref for each in config.request_handler.parsers}
    return [
        f"plugin {each.known_as} has no effect: requestHandler.parsers does not name it"
        for each in config.plugins
        if each.type in PARSERS and each.known_as not in named
    ]


def _named(config: KVAtlasConfig) -> Iterator[tuple[KeyPath, str, str]]:
    """Yield the place of each reference, its name, and the type of the plugin with that name, or the name itself."""
    types = {each.known_as: each.type for each in config.plugins}
    for number, each in enumerate(config.request_handler.parsers):
        path = ("requestHandler", "parsers", number, "pluginRef")
        yield path, each.plugin_ref, types.get(each.plugin_ref, each.plugin_ref)
