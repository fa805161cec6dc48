"""The policy of one configuration."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..configs.schema import AdmissionConfig
from ..scorers.core.base import LoadEstimate
from ..scorers.core.prefix_source import BurstProducer
from ..scorers.core.profile import Profile
from .admission import Admission


@dataclass(frozen=True, slots=True)
class Policy:
    """The filters, scorers and thresholds of one configuration.

    Attributes:
        generation: of the configuration.
        profile: filters, scorers and picker.
        admission: which requests are turned away.
        load: what a request adds to the load of its endpoint, beside its prompt; None for nothing.
        burst: how requests that arrive together are assigned; None if they do not wait for each other.
    """

    generation: int
    profile: Profile
    admission: Admission = field(default_factory=lambda: Admission(AdmissionConfig()))
    load: LoadEstimate | None = None
    burst: BurstProducer | None = None
