"""Finite-size experiments in PyTorch: data, risk, training and GAMP at any dimension d.

Data flows problem → instance → risk → optimiser → measurements → dataset.  This is the only part of the package,
with the torch backend of the local problem, that imports torch.
"""

import os

from attnphase.extras import require_torch

require_torch()

# Must stand before torch is imported.  Threads that spin while they wait make a short elementwise operation a hundred
# times slower wherever another process uses one of the cores.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
