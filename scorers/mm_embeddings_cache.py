"""`mm-embeddings-cache-scorer` and its producer: prefer endpoints whose encoder has seen the request's images."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Annotated

import numpy as np
from msgspec import Meta, field

from .core.candidates import Candidates
from .core.decision import Decision
from .core.model import RequestView
from .core.params import BuildContext, PluginParams
from .core.prefix_source import MediaProducer
from .core.ratings import Inputs, Ratings
from .core.registry import Registry
from .errors import ParametersError, UnknownName

PRODUCER = "mm-embeddings-cache-producer"

DEFAULT_MEBIBYTES = 4096
ITEM_MEBIBYTES = 2
"""Memory of one item in an encoder's cache. Source: the reference's assumption."""

SPARE_ENDPOINTS = 16
"""Endpoints that are remembered beyond twice those of the fleet; the least recently picked is forgotten first. Some may come back, but
names of new pods come without end, and an endpoint's media take 250 kB."""


class MediaProducerParams(PluginParams, frozen=True):
    """Parameters of `mm-embeddings-cache-producer`."""

    cache_size_in_mb_per_server: Annotated[int, Meta(le=2**30)] = field(
        default=0, name="cacheSizeInMBPerServer"
    )
    """Memory of an encoder's cache, in MiB, of which an item takes 2; 0 or less: 4096."""
    encode_profile: str = ""
    """Accepted without effect: the servers that a profile picks are those that its plugins learn from."""

    def producer(self) -> MediaProducer:
        """Return the producer that the parameters describe."""
        size = self.cache_size_in_mb_per_server
        return MediaProducer(max(1, (size if size > 0 else DEFAULT_MEBIBYTES) // ITEM_MEBIBYTES))


class MediaCacheParams(PluginParams, frozen=True):
    """Parameters of `mm-embeddings-cache-scorer`."""

    producer_name: str = ""
    """Name of an `mm-embeddings-cache-producer` in `plugins`; empty: the one of that name, or its defaults."""


class MediaCacheScorer:
    """Score `seen / n` of the n different media items in the request, by those sent to the endpoint before.

    Ties: endpoints that have seen as many score the same; without media all score 0.

    Args:
        n_items: items that are remembered of an endpoint, the most recently sent.
    """

    type = "mm-embeddings-cache-scorer"
    reads_media = True

    def __init__(self, n_items: int) -> None:
        self._n_items = n_items
        self._seen: OrderedDict[str, OrderedDict[int, None]] = OrderedDict()

    def rate(self, request: RequestView, candidates: Candidates) -> Ratings:
        """Return one rating per candidate; raw is the number of items that it has seen, None without media."""
        media = request.media
        if not media:
            return Ratings(np.zeros(len(candidates)))
        nothing: OrderedDict[int, None] = OrderedDict()
        seen = np.array(
            [sum(map(self._seen.get(name, nothing).__contains__, media)) for name in candidates.names],
            np.float64,
        )
        return Ratings(seen / len(media), Inputs(seen))

    def picked(self, request: RequestView, decision: Decision) -> None:
        """Remember the media that an endpoint was sent."""
        if request.media:
            self._remember(decision.picked[0], request.media)
            most = 2 * len(decision.table.directory) + SPARE_ENDPOINTS
            while len(self._seen) > most:
                self._seen.popitem(last=False)

    def _remember(self, name: str, media: Iterable[int]) -> None:
        items = self._seen.setdefault(name, OrderedDict())
        self._seen.move_to_end(name)
        for item in media:
            items[item] = None
            items.move_to_end(item)
        while len(items) > self._n_items:
            items.popitem(last=False)


def register(registry: Registry) -> None:
    """Register the scorer and its producer."""
    registry.producers.add(PRODUCER, MediaProducerParams, lambda params, _: params.producer())
    registry.scorers.add(MediaCacheScorer.type, MediaCacheParams, _make)


def _make(params: MediaCacheParams, context: BuildContext) -> MediaCacheScorer:
    name = params.producer_name
    if name and name not in context.media:
        unknown = UnknownName(name, tuple(context.media))
        raise ParametersError(
            f"found {name!r}, expected the name of an {PRODUCER}", "producerName", unknown=unknown
        )
    return MediaCacheScorer(context.media.get(name or PRODUCER, DEFAULT_MEBIBYTES // ITEM_MEBIBYTES))
