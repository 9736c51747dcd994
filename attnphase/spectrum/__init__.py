"""The spectral measure, equation (5)."""

from attnphase.problem.atoms_file import read_csv
from attnphase.spectrum.measure import Spectrum, gaussian_gram

__all__ = [
    "Spectrum",
    "gaussian_gram",
    "read_csv",
]
