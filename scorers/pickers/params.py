"""Parameters that every picker takes."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from ..core.params import PluginParams


class PickerParams(PluginParams, frozen=True):
    """Parameters of a picker."""

    max_num_of_endpoints: Annotated[int, Meta(ge=1)] = 1
    """Most endpoints to pick; a gateway uses the second and further ones for retries."""
