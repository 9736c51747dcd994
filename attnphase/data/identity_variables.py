"""The part of the schema for exact identities of a solved point."""

from __future__ import annotations

from attnphase.data.variable import Variable
from attnphase.fixed_points.verdict import Verdict

__all__ = ["VERDICT_VARIABLE", "VIOLATION_VARIABLES"]

VIOLATION_VARIABLES = (
    Variable(
        "violation_alpha",
        (),
        "relative difference of the training loss's total derivative in alpha from E[M]",
        r"\mathrm{d} \epsilon_t / \mathrm{d} \alpha / E[M] - 1",
        True,
        optional=True,
    ),
    Variable(
        "violation_ridge",
        (),
        "relative difference of the training loss's total derivative in the ridge from half the squared norm",
        r"2 \mathrm{d} \epsilon_t / \mathrm{d} \lambda / (\Vert W \Vert^2 / d) - 1",
        True,
        optional=True,
    ),
    Variable(
        "violation_V_hat",
        (),
        "largest difference of the residual's mean derivative from V_hat by Stein's lemma, relative to V_hat",
        r"-\alpha E[\partial g / \partial \omega] / \hat{V} - 1",
        True,
        optional=True,
    ),
    Variable(
        "violation_theta_hat",
        (),
        "largest difference of the residual's mean derivative by the teacher's fields from theta_hat, relative to it",
        r"\alpha E[\partial g / \partial k] / \hat{\theta} - 1",
        True,
        optional=True,
    ),
)
"""Relative differences of both sides of the identities, whose errors are those of the differences."""

VERDICT_VARIABLE = Variable(
    "identities",
    (),
    "whether a violation exceeds what its error allows",
    r"\mathrm{identities}",
    dtype="int8",
    meanings=tuple(one.name for one in Verdict),
    optional=True,
)
"""What the violations say together."""
