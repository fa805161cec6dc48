"""How request bodies are read and changed, under the reference's own key `requestHandler`."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from .section import Section


class ParserRefConfig(Section, frozen=True):
    """A reference to a parser."""

    plugin_ref: Annotated[str, Meta(min_length=1)]
    """Name of a parser in `plugins`, or its type."""


class RequestHandlerConfig(Section, frozen=True):
    """Reading and changing request bodies."""

    parsers: tuple[ParserRefConfig, ...] = ()
    """Parsers whose APIs clients may use, others get 400; with `passthrough-parser` they are routed unread. Empty: every known API, others unread."""
    propagate_priority: bool = False
    """Whether the priority of a request's objective is written into its JSON body, for engines with a priority scheduler; a client's own is replaced."""
