"""A problem at a solved point, as the checks take it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from attnphase.arrays import Array
from attnphase.fixed_points.point import BranchPoint
from attnphase.fixed_points.settings import SolverSettings
from attnphase.integration.refinement import Refinement
from attnphase.integration.rules import Rule
from attnphase.problem.problem import Problem
from attnphase.processes.threads import available_cores
from attnphase.state_evolution.assignments import informed_starts, nearest_start
from attnphase.state_evolution.channel import Channel
from attnphase.state_evolution.map import StateEvolution
from attnphase.state_evolution.overlaps import Overlaps
from attnphase.state_evolution.replicates import rows_against, rows_of
from attnphase.state_evolution.system import System

__all__ = ["Case", "Means"]


@dataclass(frozen=True, eq=False)
class Case:
    """A problem with a solved point, and the map of state evolution under the problem's rules of integration.

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

    @cached_property
    def rules(self) -> Refinement:
        """The rules of the problem's solves."""
        return self.system.refinement_of_solve(self.settings.max_nodes)

    @cached_property
    def rule(self) -> Rule:
        """The rule that solves begin with; where its replicates tell its error, with as many points as allowed."""
        first = self.rules.first()
        return self.rules.sobol(self.rules.most_points) if first.randomised else first

    @cached_property
    def solved_with(self) -> Rule:
        """The rule that the point was solved with."""
        assert self.point.restart.rule is not None
        return self.point.restart.rule

    def map(self, rule: Rule) -> StateEvolution:
        """The map at the point, in the sector that it was solved in."""
        found = self.point.restart.overlaps
        informed = nearest_start(informed_starts(self.system, self.point.branch), found)
        sector = self.system.sector_of(informed if found.has_signal else found)
        return StateEvolution(Channel(self.system, rule), self.point.alpha, sector)

    def channel_at(self, overlaps: Overlaps, rule: Rule | None = None) -> Channel:
        """The channel on the nodes that a rule has at some overlaps; without one, the rule that a solve begins with."""
        rule = self.rules.first() if rule is None else rule
        map_ = StateEvolution(Channel(self.system, rule), self.point.alpha, self.system.sector_of(overlaps))
        if rule.lines is not None:
            map_(map_.pack(overlaps))
        return map_.channel.at(overlaps)

    def means_at(self, overlaps: Overlaps) -> Means:
        """Means over all nodes of `rule` at some overlaps, with their errors."""
        gauges = self.rules.gauges(self.rule, 1.0)
        own, *others = (self.channel_at(overlaps, rule) for rule in (self.rule, *gauges))
        return Means(own, others)


@dataclass(frozen=True, eq=False)
class Means:
    """Means over all nodes of a rule at a point, with their errors.

    Attributes
    ----------
    own : Channel
        Under the rule.
    gauges : sequence of Channel
        Under those that tell its error; none where its replicates do.
    """

    own: Channel
    gauges: Sequence[Channel]

    def of(self, values_on: Callable[[Channel], Array]) -> tuple[Array, Array]:
        """The mean of what a channel has the values (S, ...) of, and its error."""
        own, others = values_on(self.own), [values_on(gauge) for gauge in self.gauges]
        scatter = [gauge.rule.randomised for gauge in self.gauges]
        rows = rows_against(own, others, scatter) if others else rows_of(own)
        return own.mean(axis=0), np.sqrt((rows**2).sum(axis=0))
