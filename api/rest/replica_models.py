"""Answers of REST about replicas."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .models import Own


class ReplicaOut(Own):
    """One other replica."""

    name: str
    id: str = Field(description="name and life; only the name if its messages are refused")
    version: str = Field(description="of its kvatlas; empty before it has told it")
    state: Literal["live", "behind", "silent", "refused"] = Field(
        description="`behind`: something that it published is missing and was asked for; `silent`: what it owned is dropped"
    )
    age_seconds: float = Field(description="since its last message, by this replica's clock")
    missing_messages: int = Field(description="known to be lost, until they are made good")
    received_messages: int
    received_bytes: int
    generation: int | None = Field(description="of the configuration in force there; null if it is not heard")
    configuration: str | None = Field(
        description="digest of what replicas that decide alike have in common; null if it is not heard"
    )
    problem: str | None = Field(description="why its messages are refused, or a change is not in force there")


class ReplicasOut(Own):
    """Answer of `GET /v1/replicas`."""

    transport: str = Field(
        description="mesh or valkey; ipc between the workers of one pod; none if this process decides alone"
    )
    name: str | None = Field(description="of this replica; null if it decides alone")
    id: str | None
    problem: str | None = Field(
        description="why nobody, or not everybody, is reached, and what to do; null if all is well"
    )
    generation: int = Field(description="of the configuration in force here")
    configuration: str = Field(description="digest, as below")
    heard_picks: int = Field(description="picks of the others, as received")
    concurrent_picks: int = Field(
        description="picks among them whose endpoint this replica had picked too, both before the other's message came"
    )
    replicas: list[ReplicaOut] = Field(description="the others, by name")
