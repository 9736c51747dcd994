"""Finite-size experiments in PyTorch: data, risk, training and GAMP at any dimension d.

Data flows problem → instance → risk → optimiser → measurements → dataset.  What is asked for is checked without torch:
`settings`, `plan`, `optimizers.kinds`.
"""

import os

# Must stand before torch is imported.  Threads that spin while they wait make a short elementwise operation a hundred
# times slower wherever another process uses one of the cores.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
