"""The parameter `force` of calls that change the configuration."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

Force = Annotated[
    bool,
    Query(
        description="with several replicas: put it in force here although one refuses it or is silent; it follows when it can"
    ),
]
