"""Parameters that every picker takes."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from ..core.params import PluginParams


class PickerParams(PluginParams, frozen=True):
    """Parameters of a picker."""

    max_num_of_endpoints: Annotated[int, Meta(ge=0)] = 1
    """Most endpoints to pick, 0 for 1; a gateway uses the second and further ones for retries."""

    @property
    def n_endpoints(self) -> int:
        """Return the number of endpoints to pick. Source: the reference takes 0 for its default."""
        return self.max_num_of_endpoints or 1
