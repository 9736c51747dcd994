"""Which Sobol points take the place of a tensor rule, of lines, or of fewer points in a solve."""

from __future__ import annotations

import numpy as np

from attnphase.fixed_points.measuring import SolvedPoint
from attnphase.fixed_points.run import Run
from attnphase.integration.refinement import SMOOTH, Refinement
from attnphase.integration.rules import Rule
from attnphase.state_evolution.errors import contradicted, parts_of
from attnphase.state_evolution.map import StateEvolution
from attnphase.state_evolution.replicates import variations

__all__ = ["instead_of_lines", "is_contradicted", "more_points"]


def more_points(run: Run, rules: Refinement, map_: StateEvolution) -> Rule | None:
    """The Sobol rule that replaces a tensor rule, or fewer points that jump, with no fixed point; None if none may."""
    rule = map_.channel.rule
    stays = run.spent or (rule.randomised and not map_.second_minimum_share(np.inf).any())
    other = None if stays else rules.next(rule, np.inf, 1.0)
    return other if other is not None and other.randomised else None


def instead_of_lines(run: Run, rules: Refinement, solved: SolvedPoint, spent: int | None) -> Rule | None:
    """Sobol points that are enough, once lines have taken as many nodes as these will be.

    `spent` counts those of all rules so far. It is None where no rule of lines is finer: then points are taken however
    many they are, the largest rule if none is enough and this one leaves less of the error.
    """
    map_, found, response = solved.map_, solved.found, solved.response
    other, rule = rules.otherwise, map_.channel.rule
    if other is None or rule.randomised:
        return None
    few = other.as_many(rule)
    if spent is not None and few.size > spent:
        return None
    run.callback("comparing with Sobol points")
    points = run.map(few)
    error = float(np.linalg.norm(parts_of(points, found.point, response, variations(points, found.point, ()))))
    enough = other.enough(few, error)
    if spent is None:
        most, left = other.most(few, error)
        return enough or (most if left < solved.measured.relative_error else None)
    return enough if enough is not None and enough.size <= spent else None


def is_contradicted(run: Run, rules: Refinement, solved: SolvedPoint) -> bool:
    """Whether Sobol points contradict an accepted tensor rule, which is asked once: its orders may agree by chance."""
    other = rules.comparison(solved.map_.channel.rule)
    if other is None:
        return False
    run.callback("comparing with Sobol points")
    map_ = run.map(other)
    against = variations(solved.map_, solved.found.point, (map_,))
    run.contradicted = contradicted(solved.measured.moved, against, solved.response) or map_.rough_share > SMOOTH
    return run.contradicted
