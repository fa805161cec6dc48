"""Parameters that every picker takes."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from ..core.params import PluginParams


class PickerParams(PluginParams, frozen=True):
    """How many endpoints to pick."""

    max_num_of_endpoints: Annotated[int, Meta(ge=1)] = 1
    """Endpoints to pick; a gateway that retries takes the next one."""
