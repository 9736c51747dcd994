"""Figures of datasets."""

from attnphase.figures.drawing import (
    FIGURES,
    attention_figure,
    comparison_figure,
    fig2,
    fig3,
    grid_figure,
    learning_figure,
    loss_crossing,
    save_figure,
    scatter_figure,
)

__all__ = [
    "FIGURES",
    "attention_figure",
    "comparison_figure",
    "fig2",
    "fig3",
    "grid_figure",
    "learning_figure",
    "loss_crossing",
    "save_figure",
    "scatter_figure",
]
