"""A problem at a solved point, as the checks take it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from attnphase.fixed_points.point import BranchPoint
from attnphase.fixed_points.settings import SolverSettings
from attnphase.integration.rules import Rule
from attnphase.problem.problem import Problem
from attnphase.processes.threads import available_cores
from attnphase.state_evolution.channel import Channel
from attnphase.state_evolution.map import StateEvolution
from attnphase.state_evolution.overlaps import Overlaps
from attnphase.state_evolution.starts import initial_overlaps
from attnphase.state_evolution.system import System

__all__ = ["FEW", "Case"]

FEW = 64
"""Sobol points per replicate for what is exact on any."""

_MOST = 2**19  # nodes in all, sign changes and clusters included, for means that need no search


@dataclass(frozen=True, eq=False)
class Case:
    """A problem with a solved point, and the map of state evolution on any nodes.

    Attributes
    ----------
    system : System
    point : BranchPoint
        Of this problem, or of one that must have the same.
    settings : SolverSettings
        Under which it was solved.
    """

    system: System
    point: BranchPoint
    settings: SolverSettings

    @classmethod
    def of(cls, problem: Problem, point: BranchPoint, settings: SolverSettings) -> Case:
        """With the system of the problem."""
        return cls(System.of(problem, threads=settings.threads or available_cores()), point, settings)

    @property
    def problem(self) -> Problem:
        """What is checked."""
        return self.system.problem

    def turned(self, problem: Problem) -> Case:
        """Another problem at the same point."""
        return Case.of(problem, self.point, self.settings)

    def map(self, rule: int | Rule = FEW) -> StateEvolution:
        """The map at the point, under a rule or under Sobol points, so many per replicate."""
        if isinstance(rule, int):
            rule = self.system.refinement(_MOST).sobol(rule)
        sector = self.system.sector_of(initial_overlaps(self.problem, self.point.branch))
        return StateEvolution(Channel(self.system, rule), self.point.alpha, sector)

    def channel(self, points: int = FEW) -> Channel:
        """The channel on so many Sobol points per replicate."""
        return self.map(points).channel

    def channel_at(self, overlaps: Overlaps) -> Channel:
        """The channel on the nodes with which a solve begins at some overlaps, or where they are not lines on few."""
        rule = self.system.refinement_of_solve(_MOST).first()
        if rule.lines is None:
            return self.channel()
        map_ = StateEvolution(Channel(self.system, rule), self.point.alpha, self.system.sector_of(overlaps))
        map_(map_.pack(overlaps))
        return map_.channel

    def wide_channel(self) -> Channel:
        """The channel on the largest number of nodes, sign changes and clusters included: means that need no search."""
        few = self.channel()
        each = few.rule.replicates * len(few.rule.signs) * len(few.probabilities)
        return self.channel(2 ** int(math.log2(max(_MOST // each, FEW))))
