"""The histogram task of Appendix A: one small transformer, two mechanisms.

Data flows sequences → transformer → stages of training → report.
"""

from attnphase.extras import require_torch

require_torch()
