"""How notebooks show a problem: through a page that stands far above it, and that the package itself names.

A problem knows nothing of pages, which derive its equations; the package, which knows all its parts, says which of
them makes a problem's page.  Nothing is imported before a notebook asks, and nothing by this module.
"""

from __future__ import annotations

TYPE_CHECKING = False  # that of typing takes longer to import than the package
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = ["in_markdown", "show_by"]

_pages: dict[str, Callable[[], Callable[[Any], str]]] = {}


def show_by(load: Callable[[], Callable[[Any], str]]) -> None:
    """Say how a problem is shown.

    Parameters
    ----------
    load
        Imports, when it is called, what makes Markdown of a problem, and returns it.
    """
    _pages["markdown"] = load


def in_markdown(problem: Any) -> str:
    """A problem's equations and numbers as Markdown."""
    return _pages["markdown"]()(problem)
