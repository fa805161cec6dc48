"""The policy of one configuration."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..configs.schema import AdmissionConfig
from ..scorers.core.profile import Profile
from .admission import Admission


@dataclass(frozen=True, slots=True)
class Policy:
    """The filters, scorers and thresholds of one configuration.

    Attributes:
        generation: of the configuration.
        profile: filters, scorers and picker.
        admission: which requests are turned away.
    """

    generation: int
    profile: Profile
    admission: Admission = field(default_factory=lambda: Admission(AdmissionConfig()))
