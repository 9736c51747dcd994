"""Every regulariser that ``regularizer.kind`` may name."""

from __future__ import annotations

from attnphase.rows.formula import Formula
from attnphase.rows.kind import RegularizerKind
from attnphase.rows.operator import Operator
from attnphase.rows.ready_made import ElasticNet, GroupLasso, Lasso, Ridge

__all__ = ["REGULARIZERS"]

REGULARIZERS: dict[str, RegularizerKind] = {
    kind.name: kind for kind in (Ridge(), Lasso(), ElasticNet(), GroupLasso(), Formula(), Operator())
}
"""By name; to add one, write a subclass of `RegularizerKind` and put it here."""
