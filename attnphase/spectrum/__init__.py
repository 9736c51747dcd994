"""The spectral measure, equation (5)."""

from attnphase.spectrum.measure import (
    Spectrum,
    gaussian_gram,
    read_csv,
)

__all__ = [
    "Spectrum",
    "gaussian_gram",
    "read_csv",
]
