"""A field with noise of a given variance on it: the posterior is normal, and all means are known in closed form."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attnphase.theories.bayes_optimal.lattices import FieldLaw, LatticeMeans

__all__ = ["LinearSums"]


@dataclass(frozen=True)
class LinearSums:
    """Sums for one token's field of one column; no difference loses digits, however little is unknown.

    Attributes
    ----------
    noise : float
        Variance of what is added to the field.
    """

    noise: float
    name, samples = "closed forms", 2**13

    def means(self, law: FieldLaw, points: int, random: np.random.Generator) -> LatticeMeans:
        """See `attnphase.theories.bayes_optimal.lattices.Sums`."""
        V = float(law.unknown[0]) ** 2
        total = V + self.noise
        gain, spread = np.array([[V * (V / total)]]), np.array([[V * (self.noise / total)]])
        return LatticeMeans(gain, spread, -0.5 * float(1 + np.log(2 * np.pi * total)))
