"""A problem at a solved point, as the checks take it."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

from attnphase.fixed_points.settings import SolverSettings
from attnphase.fixed_points.solver import BranchPoint, sector_of
from attnphase.integration.ladder import Refinement
from attnphase.integration.rules import Rule
from attnphase.kernels.compiler import Kernels, kernels_for
from attnphase.problem.problem import Problem
from attnphase.spectrum.measure import Spectrum
from attnphase.state_evolution.channel import Channel
from attnphase.state_evolution.map import StateEvolution
from attnphase.state_evolution.starts import initial_overlaps

__all__ = ["FEW", "Case"]

FEW = 64
"""Sobol points per replicate for what is exact on any."""

_MOST = 2**19  # nodes in all, sign changes and clusters included, for means that need no search


@dataclass(frozen=True, eq=False)
class Case:
    """A problem with a solved point, and the map of state evolution on any nodes.

    Attributes
    ----------
    problem : Problem
    kernels : Kernels
    spectrum : Spectrum
    point : BranchPoint
        Of this problem, or of one that must have the same.
    settings : SolverSettings
        Under which it was solved.
    """

    problem: Problem
    kernels: Kernels
    spectrum: Spectrum
    point: BranchPoint
    settings: SolverSettings

    @classmethod
    def of(cls, problem: Problem, point: BranchPoint, settings: SolverSettings) -> Case:
        """With the kernels and the measure of the problem."""
        return cls(problem, kernels_for(problem), Spectrum.of(problem), point, settings)

    def turned(self, problem: Problem) -> Case:
        """Another problem at the same point."""
        return Case.of(problem, self.point, self.settings)

    def map(self, rule: int | Rule = FEW) -> StateEvolution:
        """The map at the point, under a rule or under Sobol points, so many per replicate."""
        if isinstance(rule, int):
            rule = Refinement(self.problem, self.kernels, self.spectrum, _MOST).sobol(rule)
        start = initial_overlaps(self.problem, self.point.branch)
        sector = sector_of(start, self.problem, self.kernels, self.spectrum)
        threads = self.settings.threads or os.cpu_count() or 1
        channel = Channel(self.problem, self.kernels, self.spectrum, rule, threads)
        return StateEvolution(channel, self.point.alpha, sector)

    def channel(self, points: int = FEW) -> Channel:
        """The channel on so many Sobol points per replicate."""
        return self.map(points).channel

    def wide_channel(self) -> Channel:
        """The channel on the largest number of nodes, sign changes and clusters included: means that need no search."""
        few = self.channel()
        each = few.rule.replicates * len(few.rule.signs) * len(few.probabilities)
        return self.channel(2 ** int(math.log2(max(_MOST // each, FEW))))
