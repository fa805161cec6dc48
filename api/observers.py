"""What looks on while requests are routed, and changes nothing of it."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from ..configs.schema import KVAtlasConfig
from ..indexer.prefix import Prefix
from ..scorers.decision import Decision
from .extproc.stream import Completion
from .recorder.metrics import recorder_families
from .recorder.recorder import Recorder
from .routing import Arrival


class Observers:
    """Those that a configuration asks for.

    Args:
        config: the configuration.

    Raises:
        RecorderError: the recorder's secret cannot be used.
    """

    def __init__(self, config: KVAtlasConfig) -> None:
        self.recorder = Recorder(config.recorder) if config.recorder.folder else None
        """None where nothing is recorded."""

    def start(self) -> None:
        """Work from now on."""
        if self.recorder is not None:
            self.recorder.start()

    async def stop(self) -> None:
        """Finish what was begun; to be called when no more requests come."""
        if self.recorder is not None:
            await self.recorder.stop()

    def routed(self, decision: Decision, prefix: Prefix | None) -> Arrival | None:
        """A request was routed; what `ended` needs of it."""
        return self.recorder.routed(decision, prefix) if self.recorder is not None else None

    def ended(self, completion: Completion) -> None:
        """A request ended."""
        if self.recorder is not None:
            self.recorder.ended(completion)

    def families(self) -> Iterator[Metric]:
        """Metrics of all of them."""
        yield from recorder_families(self.recorder)
