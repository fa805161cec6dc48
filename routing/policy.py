"""The policy of one configuration."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..configs.schema import AdmissionConfig
from ..scorers.core.around import AttributeReporter, IdentityReader
from ..scorers.core.base import LoadEstimate
from ..scorers.core.prefix_source import BurstProducer
from ..scorers.core.scheduler import Deciding
from ..tokenization.requests.parsers import BodyParser
from .admission import Admission


@dataclass(frozen=True, slots=True)
class RequestPolicy:
    """The part of one configuration that is about requests and responses, not about endpoints.

    Attributes:
        parser: reads bodies.
        identities: find the flow of a request without fairness header; the first one that finds one counts.
        reporters: report numbers about a request to the gateway, at its end.
        answers_models: whether `GET /v1/models` is answered here.
        propagates_priority: whether the priority of a request is written into its body.
    """

    parser: BodyParser = field(default_factory=BodyParser)
    identities: tuple[IdentityReader, ...] = ()
    reporters: tuple[AttributeReporter, ...] = ()
    answers_models: bool = False
    propagates_priority: bool = False


@dataclass(frozen=True, slots=True)
class Policy:
    """The filters, scorers and thresholds of one configuration.

    Attributes:
        generation: of the configuration.
        profile: filters, scorers and picker.
        admission: which requests are turned away.
        requests: what is read of requests, and said of them.
        load: what a request adds to the load of its endpoint, beside its prompt; None for nothing.
        burst: how requests that arrive together are assigned; None if they do not wait for each other.
    """

    generation: int
    profile: Deciding
    admission: Admission = field(default_factory=lambda: Admission(AdmissionConfig()))
    requests: RequestPolicy = field(default_factory=RequestPolicy)
    load: LoadEstimate | None = None
    burst: BurstProducer | None = None

    @property
    def max_load_age_s(self) -> float:
        """Return the age up to which the load of endpoints with known requests will do. Cost: O(objectives)."""
        return min(self.profile.max_load_age_s, self.admission.max_load_age_s)
