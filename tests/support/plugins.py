"""A package whose plugins misbehave, as pip would install it."""

from __future__ import annotations

from pathlib import Path

MODULE = """
import math
import numpy as np
from kvatlas.scorers.core.params import PluginParams
from kvatlas.scorers.core.ratings import Inputs, Ratings, Verdicts

class NotFinite:
    type = "not-finite"
    def rate(self, request, candidates):
        return Ratings(np.array([math.nan, 7.0, 0.5]), Inputs(np.array([math.inf, math.nan, math.nan])))

class Raises:
    type = "raises"
    def rate(self, request, candidates):
        raise LookupError("no such zone")

class Broken:
    type = "broken"
    def judge(self, request, candidates, *, rng):
        return Verdicts(np.array([True]), lambda _: [])

class Params(PluginParams, frozen=True):
    colour: str = "red"

class Choosy(Raises):
    type = "choosy"
    Params = Params
    def __init__(self, params):
        if params.colour == "grey":
            raise ValueError("no grey")
        self.colour = params.colour

class OddParams(Raises):
    type = "odd-params"
    Params = dict

CONSTANT = 3

class Nobody:
    type = "nobody"
    def pick(self, totals, *, rng):
        return [], False
"""
ENTRY_POINTS = """[kvatlas.scorers]
not-finite = faulty_plugins:NotFinite
raises = faulty_plugins:Raises
missing = faulty_plugins:Missing
queue-scorer = faulty_plugins:Raises
no-scorer = faulty_plugins:Broken
no-class = faulty_plugins:CONSTANT
odd-params = faulty_plugins:OddParams
choosy = faulty_plugins:Choosy
[kvatlas.filters]
broken = faulty_plugins:Broken
[kvatlas.pickers]
nobody = faulty_plugins:Nobody
wrong-name = faulty_plugins:Nobody
"""


def install_faulty(target: Path) -> None:
    """Write the package into a folder that is, or will be, on the import path."""
    info = target / "faulty_plugins-1.0.dist-info"
    info.mkdir(parents=True)
    (target / "faulty_plugins.py").write_text(MODULE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: faulty-plugins\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
