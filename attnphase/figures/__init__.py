"""Figures of datasets."""

from attnphase.figures.bayes_optimal import gap_figure, limits_figure
from attnphase.figures.experiments import comparison_figure, grid_figure, scatter_figure
from attnphase.figures.histogram import attention_figure, learning_figure
from attnphase.figures.maps import fig3
from attnphase.figures.named import FIGURES
from attnphase.figures.sgd_flow import basins_figure, trajectory_figure
from attnphase.figures.slices import fig9
from attnphase.figures.style import save_figure
from attnphase.figures.theory import fig2, loss_crossing

__all__ = [
    "FIGURES",
    "attention_figure",
    "basins_figure",
    "comparison_figure",
    "fig2",
    "fig3",
    "fig9",
    "gap_figure",
    "grid_figure",
    "learning_figure",
    "limits_figure",
    "loss_crossing",
    "save_figure",
    "scatter_figure",
    "trajectory_figure",
]


def __dir__() -> list[str]:
    return __all__
