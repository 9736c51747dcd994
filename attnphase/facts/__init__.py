"""Facts that are decided on numbers: symmetries and gauges of losses, symmetries and values of labels, equal moments.

All decisions of this kind are made here.  A rule on the expression proves a fact for all fields (`expressions`).  What
no rule decides is asked in 40 digits at fields of the problem's own size, from 1/100 to 30 standard deviations, and in
every cell between kinks (`points`).  Values are the same if they differ by less than 1e-20 of what they vary by, so
that neither a constant nor a unit matters.  Double precision only rejects.
"""

from attnphase.facts.expressions import Expressions
from attnphase.facts.points import SCALES, Block, Points, points_of
from attnphase.facts.questions import Asked, Question, group_of

__all__ = ["SCALES", "Asked", "Block", "Expressions", "Points", "Question", "group_of", "points_of"]
