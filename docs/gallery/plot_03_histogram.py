"""
The histogram task (Figures 4 and 5)
====================================

Attention matrices of the positional and the semantic mechanism, for a small transformer that learns to count. The
runs are those that the repository contains.
"""

from pathlib import Path

import attnphase as ap
from attnphase.figures import attention_figure

report = ap.load_dataset(Path.cwd().parents[1] / "data" / "histogram" / "report.nc")
figure = attention_figure(report)
