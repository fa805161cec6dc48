"""Differences between what was recorded and what a picker said, in words."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from kvatlas.routing.control_headers import CONTROL_HEADERS
from support.replay.answers import DESTINATION
from support.replay.messages import request
from support.replay.play import picks_of
from support.replay.recordings import Json

SCORE_TOLERANCE = 2e-3
DEVIATIONS = 5.0
"""Standard deviations by which a share of picks may be off."""


def differences(recorded: Json, observed: Json) -> Iterator[str]:
    """Yield the differences of one step."""
    if "together" in recorded:
        for number, (one, other) in enumerate(zip(recorded["together"], observed["together"], strict=True)):
            yield from (f"{number}: {each}" for each in differences(one, other))
    if "counts" in recorded:
        yield from _chances(recorded, observed["counts"])
        return
    if "picked" in recorded and recorded["picked"] != "see variants":
        yield from _picks(recorded, observed)
    if "send" in recorded or "answers" in recorded:
        yield from _answers(recorded, observed)
    if "in_flight" in recorded and recorded["in_flight"] != observed["in_flight"]:
        yield f"in flight {observed['in_flight']}, not {recorded['in_flight']}"
    if "counters" in recorded:
        yield from _counters(recorded["counters"], observed["counters"])


def scores_differ(recorded: Mapping[str, object], observed: Mapping[str, object]) -> bool:
    """Return whether scores by name differ in names or by more than the tolerance."""
    return recorded.keys() != observed.keys() or any(
        not _is_close(float(str(score)), float(str(observed[name]))) for name, score in recorded.items()
    )


def _picks(recorded: Json, observed: Json) -> Iterator[str]:
    one_of = recorded.get("any_of")
    if (picks_of(observed) not in one_of) if one_of else (observed["picked"] != recorded["picked"]):
        yield f"picked {observed['picked']}, not {one_of or recorded['picked']}"
    scores = [recorded[key] for key in ("scores", "scores_second_run") if key in recorded]
    found = observed.get("scores", {})
    if scores and all(scores_differ(each, found) for each in scores):
        yield f"scores {_rounded(found)}, not {_rounded(scores[0])}"


def _chances(recorded: Json, counts: Mapping[str, int]) -> Iterator[str]:
    """Yield the shares of picks that chance does not explain, taking both runs of the reference together."""
    theirs, ours = sum(recorded["counts"].values()) * 2, sum(counts.values())
    for name in sorted({*counts, *recorded["counts"], *recorded["counts_second_run"]}):
        n_recorded = recorded["counts"].get(name, 0) + recorded["counts_second_run"].get(name, 0)
        share = (n_recorded + counts.get(name, 0)) / (theirs + ours)
        deviation = math.sqrt(share * (1 - share) * (1 / theirs + 1 / ours))
        if abs(counts.get(name, 0) / ours - n_recorded / theirs) > DEVIATIONS * deviation:
            yield f"picked {name} {counts.get(name, 0)} of {ours} times, not {n_recorded} of {theirs}"


def _answers(recorded: Json, observed: Json) -> Iterator[str]:
    expected: list[Json] = recorded["answers"] if "answers" in recorded else _plain(recorded)
    found: Sequence[Json] = observed["answers"]
    kinds, found_kinds = [_kind(each) for each in expected], [_kind(each) for each in found]
    if kinds != found_kinds:
        yield f"answers {' '.join(found_kinds) or 'none'}, not {' '.join(kinds) or 'none'}" + _refusal(found)
        return
    has_chance = "any_of" in recorded
    for one, other in zip(expected, found, strict=True):
        yield from _answer(
            _with_choices(one, other, recorded.get("any_of_headers", {})), other, has_chance=has_chance
        )


def _with_choices(recorded: Json, observed: Json, choices: Mapping[str, Sequence[str]]) -> Json:
    """Return the recorded answer with the observed values of headers that chance chooses, where they are possible."""
    found: dict[str, str] = observed.get("request_headers", {}).get("set", {})
    chosen = {name: found[name] for name, values in choices.items() if found.get(name) in values}
    if not chosen or "request_headers" not in recorded:
        return recorded
    head: Json = recorded["request_headers"]
    return {**recorded, "request_headers": {**head, "set": {**head["set"], **chosen}}}


def _plain(recorded: Json) -> list[Json]:
    """Return the answers to a routed request of which the recording says no more."""
    if recorded["picked"] is None:
        return []
    sent = request(recorded["send"], "")
    metadata = {"envoy.lb": {DESTINATION: ...}}
    head: Json = {
        "set": {"Content-Length": str(len(sent.body)), DESTINATION: ...},
        "not_echoed": ["content-length"],
    }
    return [
        {"request_headers": head | {"clear_route_cache": True}, "dynamic_metadata": metadata},
        {"request_body": {"body": "as sent", "end_of_stream": True}},
    ]


def _answer(recorded: Json, observed: Json, *, has_chance: bool) -> Iterator[str]:
    for kind in recorded.keys() | observed.keys():
        one, other = recorded.get(kind), observed.get(kind)
        match kind:
            case "request_headers" | "response_headers":
                yield from _headers(kind, one or {}, other or {}, has_chance=has_chance)
            case "request_body" | "response_body":
                yield from _body(kind, one or {}, other or {})
            case "immediate_response":
                yield from _immediate(one or {}, other or {})
            case "dynamic_metadata":
                if not _same(one, other, has_chance=has_chance):
                    yield f"dynamic metadata {json.dumps(other)}, not {json.dumps(one, default=str)}"
            case _:
                if one != other and not (kind == "stream" and _code(one) == _code(other)):
                    yield f"{kind} {other}, not {one}"


def _headers(kind: str, recorded: Json, observed: Json, *, has_chance: bool) -> Iterator[str]:
    one, other = dict(recorded.get("set", {})), dict(observed.get("set", {}))
    for name in sorted(one.keys() | other.keys()):
        if not _same(one.get(name), other.get(name), has_chance=has_chance or name == "Content-Length"):
            yield f"{kind} {name}: {other.get(name)}, not {one.get(name)}"
    missing, found = set(recorded.get("not_echoed", ())), set(observed.get("not_echoed", ()))
    if missing != found:
        yield f"{kind} not echoed: {_list(found)}, not {_list(missing)}"
    # the reference removes nothing; what it does not give back must not reach the engine here
    if extra := set(observed.get("removed", ())) - CONTROL_HEADERS:
        yield f"{kind} removes {_list(extra)}"
    if recorded.get("clear_route_cache") != observed.get("clear_route_cache"):
        yield f"{kind} clear_route_cache {observed.get('clear_route_cache')}"


def _same(recorded: object, observed: object, *, has_chance: bool) -> bool:
    """Return whether values are equal; with chance, or where the recording leaves it open, only whether both exist."""
    if isinstance(recorded, dict) and isinstance(observed, dict):
        one, other = cast("Json", recorded), cast("Json", observed)
        return one.keys() == other.keys() and all(
            _same(value, other[key], has_chance=has_chance) for key, value in one.items()
        )
    if recorded is ... or (has_chance and recorded is not None):
        return observed is not None
    return recorded == observed


def _body(kind: str, recorded: Json, observed: Json) -> Iterator[str]:
    body: object = recorded.get("body")
    if body != observed.get("body"):
        try:
            is_same = isinstance(body, dict) and json.loads(observed.get("body", "")) == body
        except ValueError:
            is_same = False
        if not is_same:
            yield f"{kind} {str(observed.get('body', observed))[:200]!r}, not {f'{body}'[:200]!r}"
    if recorded.get("end_of_stream") != observed.get("end_of_stream"):
        yield f"{kind} end of stream {observed.get('end_of_stream')}, not {recorded.get('end_of_stream')}"
    if _chunks(recorded) != _chunks(observed):
        yield f"{kind} chunks {_chunks(observed)}, not {_chunks(recorded)}"


def _chunks(body: Json) -> tuple[int, int, int] | None:
    """Return the number of chunks, and the length of the first and the last; None for a body in one."""
    chunks: list[int] | dict[str, int] = body.get("chunks", [])
    if isinstance(chunks, dict):
        return chunks["count"], chunks["first"], chunks["last"]
    return (len(chunks), chunks[0], chunks[-1]) if chunks else None


def _immediate(recorded: Json, observed: Json) -> Iterator[str]:
    for key in ("status", "headers"):
        if recorded.get(key) != observed.get(key):
            yield f"{key} {observed.get(key)}, not {recorded.get(key)}"
    one, other = _meaning(recorded.get("body", "")), _meaning(observed.get("body", ""))
    if one != other:
        yield f"text {other!r}, not {one!r}"


def _meaning(text: str) -> str:
    """Return the part of an error's text before the second colon; the rest is the JSON library's."""
    return ":".join(text.split(":")[:2])


def _counters(recorded: Mapping[str, float], observed: Mapping[str, float]) -> Iterator[str]:
    """Yield differences of recorded series that the picker has, with any labels."""
    families = {_family(name) for name in recorded} & {_family(name) for name in observed}
    for name in sorted(recorded.keys() | observed.keys()):
        if _family(name) in families and recorded.get(name, 0) != observed.get(name, 0):
            yield f"{name} grows by {observed.get(name, 0)}, not {recorded.get(name, 0)}"


def _family(sample: str) -> str:
    return sample.partition("{")[0]


def _kind(answer: Json) -> str:
    if "stream" in answer:
        return f"stream {_code(answer['stream'])}"
    kind = next(each for each in answer if each != "dynamic_metadata")
    return f"{kind} {answer[kind]['status']}" if kind == "immediate_response" else kind


def _code(end: object) -> str:
    return " ".join(str(end).split()[:2])


def _refusal(answers: Sequence[Json]) -> str:
    texts = [each["immediate_response"]["body"] for each in answers if "immediate_response" in each]
    return f" ({texts[0]})" if texts else ""


def _is_close(one: float, other: float) -> bool:
    return (math.isnan(one) and math.isnan(other)) or abs(one - other) <= SCORE_TOLERANCE


def _rounded(scores: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {float(str(score)):.3f}" for name, score in scores.items()) or "none"


def _list(names: set[str]) -> str:
    return ", ".join(sorted(names)) or "none"
