"""Checks of the other replicas that decide for the same endpoints."""

from __future__ import annotations

from collections.abc import Iterator

from ...fleet.replicas.sibling import Sibling, SiblingState
from ...fleet.replicas.view import ReplicasView
from .check import Check, Finding, State
from .deployment import Deployment

ALONE = "no other replicas are configured: this process decides alone"

_REACH = {
    "ipc": "the log, which says whether the other workers of server.workers have started, and why one ended",
    "mesh": "run a second one; replicas.mesh.discover has to name it (the log says if a name cannot be resolved), and "
    "network policies to allow replicas.mesh.listen",
    "valkey": "run a second one, with the same replicas.valkey address and prefix",
}
"""Transport -> what to look at if nobody is heard."""

_RETRIED = "what the line above names; it is tried again by itself, and each replica decides by what it knows"


def _heard(deployment: Deployment) -> Iterator[Finding]:
    view = deployment.replicas
    if view is None:
        yield Finding(State.OK, ALONE)
        return
    siblings = view.siblings()
    live = [each for each in siblings if each.state is SiblingState.LIVE]
    if view.problem:
        yield Finding(State.FAIL, f"{view.transport}: {view.problem}", _RETRIED)
    elif not siblings:
        yield Finding(
            State.WARN,
            f"replicas.transport is {view.transport}, and no other replica is heard: this one decides alone",
            _REACH.get(view.transport, "run a second one"),
        )
    yield from (_of(each) for each in siblings if each.state is not SiblingState.LIVE)
    for reason, count in deployment.counts.by("reason", "kvatlas_replica_refused_total").items():
        if reason == "secret":
            yield Finding(
                State.FAIL,
                f"{count:.0f} connections of replicas with another secret were refused since the start",
                "the same content in replicas.mesh.secretFile of all replicas; restart those that had the old one",
            )
    if live:
        oldest = max(each.age_s for each in live)
        others = "1 other is" if len(live) == 1 else f"{len(live)} others are"
        yield Finding(State.OK, f"{others} heard, the last message {oldest:.1f} s ago at most")


def _of(sibling: Sibling) -> Finding:
    if sibling.state is SiblingState.REFUSED:
        return Finding(
            State.FAIL,
            f"messages are refused: {sibling.reason}",
            "the same version, model or pool, index.hashSeed and a name of its own for each replica",
        )
    if sibling.state is SiblingState.SILENT:
        return Finding(
            State.WARN,
            f"{sibling.name} has been silent for {sibling.age_s:.0f} s; what it had in flight counts no more",
            "kubectl get pods: does it run? Its log, and the network between the two; nothing if it was removed",
        )
    if not sibling.n_missing:
        return Finding(
            State.UNKNOWN, f"{sibling.name} has just been heard, and was asked for all that it owns"
        )
    return Finding(
        State.WARN,
        f"{sibling.n_missing} messages of {sibling.name} are missing, and were asked for again",
        "the network between the two, if this lasts; kvatlas_replica_dropped_total on the other",
    )


def _agreed(deployment: Deployment) -> Iterator[Finding]:
    view = deployment.replicas
    if view is None:
        yield Finding(State.OK, ALONE)
        return
    yield from _differing(view)


def _differing(view: ReplicasView) -> Iterator[Finding]:
    own, words = view.word, sorted(view.words.values(), key=lambda word: word.name)
    for word in (own, *words):
        if word.refused is not None:
            yield Finding(
                State.FAIL,
                f"generation {word.refused.stamp.number} could not be put in force on {word.name}: "
                f"{word.refused.refusal}",
                f"the configuration file of {word.name}, which differs; load it again there",
            )
    for word in words:
        if word.digest != own.digest:
            yield Finding(
                State.WARN,
                f"{word.name} decides by configuration {word.digest} (generation {word.generation}), "
                f"this one by {own.digest} (generation {own.generation})",
                "the same file for all replicas; a changed ConfigMap takes up to a minute to reach every pod",
            )
    if words and all(word.digest == own.digest and word.refused is None for word in (own, *words)):
        yield Finding(State.OK, f"{len(words) + 1} replicas decide by configuration {own.digest}")


CHECKS = (
    Check(
        "replicas-heard",
        "Are the other replicas heard?",
        "each decides by its own requests alone: several may send to one server at once",
        _heard,
    ),
    Check(
        "replicas-agree",
        "Do all replicas decide by the same configuration?",
        "a request is decided by whichever replica gets it",
        _agreed,
    ),
)
