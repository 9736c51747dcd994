"""
The histogram task (Figures 4 and 5)
====================================

A small transformer that learns to count: attention matrices of the positional and the semantic mechanism, from the runs
that the repository holds.
"""

from pathlib import Path

import attnphase as ap
from attnphase.figures import attention_figure

report = ap.load_dataset(Path.cwd().parents[1] / "data" / "histogram" / "report.nc")
figure = attention_figure(report)
