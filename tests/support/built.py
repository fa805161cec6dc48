"""A plugin built from plain parameters, without a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from kvatlas.scorers.core.params import BuildContext
from kvatlas.scorers.core.registry import Plugins
from kvatlas.scorers.errors import ParametersError

T = TypeVar("T")

NO_CONTEXT = BuildContext()


def built(
    plugins: Plugins[T],
    plugin_type: str,
    parameters: Mapping[str, object],
    context: BuildContext = NO_CONTEXT,
) -> T:
    """Build a plugin of that type.

    Raises:
        ParametersError: the parameters are wrong.
    """
    blueprint = plugins.get(plugin_type)
    assert blueprint is not None, plugin_type
    try:
        params = msgspec.convert(parameters, blueprint.params)
    except msgspec.ValidationError as error:
        raise ParametersError(str(error)) from error
    return blueprint.make(params, context)
