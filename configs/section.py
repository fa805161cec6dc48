"""What the sections of configuration files have in common."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Base of every section: camelCase keys, unknown keys refused."""


Port = Annotated[int, Meta(ge=1, le=65535)]
Weight = Annotated[float, Meta(ge=0)]
BlockCount = Annotated[int, Meta(ge=1)]
