"""
Learning to count (Figure 6)
============================

Accuracy and loss during training of transformers that learn to count: first with frozen attention, then with all
weights.
"""

from pathlib import Path

import attnphase as ap
from attnphase.figures import learning_figure

report = ap.load_dataset(Path.cwd().parents[1] / "data" / "histogram" / "report.nc")
figure = learning_figure(report)
