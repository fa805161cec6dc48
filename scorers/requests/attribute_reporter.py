"""`request-attribute-reporter`: a number computed from a request's usage, such as its cost, for the gateway."""

from __future__ import annotations

import math
from typing import Annotated

from msgspec import Meta

from ..core.around import Attribute, UsageCounts
from ..core.params import BuildContext, PluginParams
from ..core.registry import Registry
from ..errors import ExpressionError, ParametersError
from .expression import Expression, Value

PLUGIN_TYPE = "request-attribute-reporter"

DEFAULT_NAMESPACE = "envoy.lb"

Text = Annotated[str, Meta(min_length=1, max_length=4096)]


class AttributeKeyParams(PluginParams, frozen=True):
    """`key`."""

    name: Text
    """Key of the number."""
    namespace: str = DEFAULT_NAMESPACE
    """Top-level key in the gateway's dynamic metadata."""


class AttributeParams(PluginParams, frozen=True):
    """One entry of `attributes`."""

    key: AttributeKeyParams
    """Place of the number."""
    expression: Text
    """The number, in the Common Expression Language; `usage` has the tokens."""
    condition: Annotated[str, Meta(max_length=4096)] = ""
    """Whether there is a number; empty: always."""


class AttributeReporterParams(PluginParams, frozen=True):
    """Parameters of `request-attribute-reporter`."""

    attributes: Annotated[tuple[AttributeParams, ...], Meta(min_length=1, max_length=1)]
    """The number; further ones need a plugin each."""


class AttributeReporter:
    """Evaluates an expression over the usage. A result of 0 is not reported, nor one that is no finite number.

    Args:
        namespace, name: place of the result.
        expression: gives the number.
        condition: gives whether it is reported; None: always.
    """

    type = PLUGIN_TYPE

    def __init__(
        self, namespace: str, name: str, expression: Expression, condition: Expression | None
    ) -> None:
        self._namespace, self._name = namespace, name
        self._expression, self._condition = expression, condition

    def attribute(self, usage: UsageCounts) -> Attribute | None:
        """Return the number as a whole one, rounded towards 0; None if the condition does not hold, or nothing came out."""
        variables = {"usage": _fields(usage)}
        try:
            if self._condition is not None and self._condition.evaluate(variables) is not True:
                return None
            value = self._expression.evaluate(variables)
        except ExpressionError:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            return None
        whole = math.trunc(value)
        return Attribute(self._namespace, self._name, float(whole)) if whole else None


def _fields(usage: UsageCounts) -> dict[str, Value]:
    """Return the usage as expressions see it: floating-point numbers, by the names of OpenAI's API."""
    found: dict[str, Value] = {
        "prompt_tokens": float(usage.prompt_tokens),
        "completion_tokens": float(usage.completion_tokens),
        "total_tokens": float(usage.prompt_tokens + usage.completion_tokens),
    }
    if usage.cached_tokens is not None:
        found["prompt_tokens_details"] = {"cached_tokens": float(usage.cached_tokens)}
    return found


def register(registry: Registry) -> None:
    """Register `request-attribute-reporter`."""
    registry.reporters.add(PLUGIN_TYPE, AttributeReporterParams, _make)


def _make(params: AttributeReporterParams, _: BuildContext) -> AttributeReporter:
    (attribute,) = params.attributes
    condition = _compiled(attribute.condition, "condition") if attribute.condition.strip() else None
    namespace = attribute.key.namespace or DEFAULT_NAMESPACE
    expression = _compiled(attribute.expression, "expression")
    return AttributeReporter(namespace, attribute.key.name, expression, condition)


def _compiled(source: str, key: str) -> Expression:
    try:
        return Expression(source, variables=("usage",))
    except ExpressionError as error:
        raise ParametersError(f"{key}: {error}", "attributes") from error
