"""Labels without noise that leave a sign: all means as sums over one variable, whatever the number of tokens.

The posterior of a sample with the fields k is two points, k and -k, with the odds ``exp(2 x)``, ``x = k V^-1 omega``.
The joint law of k and omega is that of ``k ~ N(0, V)`` times a Gaussian of omega and ``e^x``; a mean of an even
function of k keeps the even part of what it has of x, so that ``1 - tanh^2 x`` becomes ``1/cosh x``, and the entropy of
the sign the function f with ``f'' = f - 1/cosh``.  Both are superpositions of ``cos(t x)``,

    1/cosh x = int dt cos(t x) / (2 cosh(pi t / 2)),      f(x) = int dt cos(t x) / (2 (1 + t^2) cosh(pi t / 2)),

whose Gaussian means are known and factorise over the tokens.  What is left is analytic in ``|Im t| < 1``: a sum with
the spacing h has an error of about ``exp(-2 pi / h)``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attnphase.theories.bayes_optimal.lattices import FieldLaw, LatticeMeans

__all__ = ["TwoPoints"]

_END = 26.0  # of the sums, where 1/cosh has fallen to 1e-17


@dataclass(frozen=True)
class TwoPoints:
    """Sums for labels that tell the fields of one column up to a sign that all have in common, or exactly.

    Attributes
    ----------
    even : bool
        Whether the sign is left.
    """

    even: bool
    name, samples = "sums over one variable", 2**15

    def means(self, law: FieldLaw, points: int, random: np.random.Generator) -> LatticeMeans:
        """See `attnphase.theories.bayes_optimal.lattices.Sums`; the evidence is a density on the fields."""
        q, V, center = law.known**2, law.unknown**2, law.center
        entropy = -0.5 * float(np.log(2 * np.pi * V).sum() + len(V))
        if not self.even:
            return LatticeMeans(np.diag(V), np.zeros((len(V), len(V))), entropy)
        step = 2 * _END / points
        t = (step * (np.arange(points) + random.random()) - _END)[:, None]
        curve = 1 + t**2
        width = V + curve * q
        factors = np.sqrt(V / width) * np.exp(-(center**2) * curve / (2 * width))
        mean, variance = center * V / width, q * V / width  # of omega, as it is weighted
        weights = step / 2 / np.cosh(np.pi * t[:, 0] / 2) * factors.prod(axis=1)
        spread = weights @ (V - t**2 * (variance + mean**2))
        return LatticeMeans(np.diag(V - spread), np.diag(spread), entropy + float(weights @ (1 / curve[:, 0])))
