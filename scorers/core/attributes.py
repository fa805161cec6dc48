"""Names of scraped attributes in parameters of plugins."""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import ParametersError
from .params import BuildContext


def checked_attribute(attribute: str, producer: str, key: str) -> str:
    """Return the attribute that the parameter `key` names.

    Raises:
        ParametersError: it has the form `ATTRIBUTE/PRODUCER`, as in the reference's messages.
    """
    name, slash, plugin = attribute.partition("/")
    if slash and not producer:
        message = f"found {attribute!r}, expected {name!r} here and {plugin!r} as producer"
        raise ParametersError(message, key)
    return attribute


def attribute_remarks(attribute: str, context: BuildContext) -> Iterator[str]:
    """Yield that an attribute is unknown on every endpoint, if no series is configured for it."""
    if attribute not in context.attributes:
        known = ", ".join(context.attributes) or "none"
        yield f"no series is configured for the attribute {attribute!r}, so that it is unknown; configured: {known}"
