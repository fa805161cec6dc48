"""LoRA adapters of an endpoint, from the samples of its engine."""

from __future__ import annotations

from collections.abc import Sequence

from ...scorers.core.model import Adapters
from .exposition import MAX_DIGITS, Sample


def adapters_of(lines: Sequence[Sample], loaded: Sequence[Sample]) -> Adapters:
    """Return the adapters.

    Args:
        lines: of requests by adapter. vLLM keeps a line for each former state; the value is the time of its last update.
        loaded: one line for each adapter and place where it is loaded; a value of 0 counts as absent.
    """
    newest_first = sorted(lines, key=lambda sample: sample.value, reverse=True)
    newest = newest_first[0].labels() if newest_first else {}
    active = _names(newest.get("running_lora_adapters", ""))
    waiting = _names(newest.get("waiting_lora_adapters", ""))
    if not loaded:
        return Adapters(active, waiting, recent=_recent(newest_first, newest, active))
    places: dict[str, set[str]] = {"gpu": set(), "cpu": set()}
    for each in loaded:
        labels = each.labels()
        if each.value > 0 and (name := labels.get("adapter_name")):
            places.setdefault(labels.get("level", ""), set()).add(name)
    on_gpu = frozenset(places["gpu"])
    return Adapters(active, waiting, on_gpu=on_gpu, in_memory=frozenset(places["cpu"]) - on_gpu)


def _recent(newest_first: Sequence[Sample], newest: dict[str, str], active: frozenset[str]) -> frozenset[str]:
    """Return the idle adapters among the last that were active, as many as fit onto the GPU together.

    vLLM displaces the adapter that was used least recently, and only if there is no room. So these are still there, unless a
    former state was never scraped into a line.
    """
    text = newest.get("max_lora", "")
    room = (int(text) if text.isdecimal() and len(text) <= MAX_DIGITS else 0) - len(active)
    recent: list[str] = []
    for line in newest_first[1:]:
        if len(recent) >= room:
            break
        names = _names(line.labels().get("running_lora_adapters", ""))
        recent += sorted(names - active - set(recent))
    return frozenset(recent[: max(0, room)])


def _names(text: str) -> frozenset[str]:
    """Return the adapters in a label, which are separated by commas."""
    return frozenset(name for part in text.split(",") if (name := part.strip()))
