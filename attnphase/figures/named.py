"""The paper's theory figures by name."""

from __future__ import annotations

from collections.abc import Callable

from matplotlib.figure import Figure

from attnphase.figures.bayes_optimal import gap_figure, limits_figure
from attnphase.figures.maps import fig3
from attnphase.figures.slices import fig9
from attnphase.figures.theory import fig2

__all__ = ["FIGURES"]

FIGURES: dict[str, Callable[..., Figure]] = {
    "fig2": fig2,
    "fig3": fig3,
    "fig8": fig3,
    "fig9": fig9,
    "limits": limits_figure,
    "gap": gap_figure,
}
"""The functions that draw them. Figure 8 is Figure 3 of another problem; the last two are beside the Bayes-optimal
limit."""
