"""The policy in force: what one configuration decides by."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..configs.schema import AdmissionConfig
from ..scorers.core.profile import Profile
from .admission import Admission


@dataclass(frozen=True, slots=True)
class Policy:
    """What one configuration decides by.

    Attributes:
        generation: of the configuration.
        profile: filters, scorers and picker.
        admission: which requests are turned away.
    """

    generation: int
    profile: Profile
    admission: Admission = field(default_factory=lambda: Admission(AdmissionConfig()))
