"""Functions of a user's own, named as ``module:function``.

They may raise anything, try to end the program, or print where results belong.  Nothing is imported but what they name.
"""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
from collections.abc import Iterator
from typing import Any

__all__ = ["ForeignError", "contained", "imported", "is_of_a_module"]


class ForeignError(ValueError):
    """A user's own code cannot be imported, or failed; the text says why, as the end of a sentence."""


@contextlib.contextmanager
def contained(*passing: type[BaseException]) -> Iterator[None]:
    """Run a user's own code: what it prints goes to standard error.

    Parameters
    ----------
    *passing
        Exceptions that are not the user's; Ctrl-C is none either.

    Raises
    ------
    ForeignError
        It raised something else.
    """
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except (KeyboardInterrupt, *passing):
        raise
    except SystemExit:
        raise ForeignError("it ends the program") from None
    except BaseException as error:
        text = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise ForeignError(text if len(text) <= 200 else f"{text[:197]}...") from error


def is_of_a_module(text: str) -> bool:
    """Whether a text names a function as ``module:function``; a formula does not, whatever its comments hold."""
    return re.fullmatch(r"[\w.]*:[\w.]*", text) is not None


def imported(name: str) -> Any:
    """The attribute that a name ``module:attribute`` stands for; None if the module has none.

    Raises
    ------
    ForeignError
        The module cannot be imported.
    """
    module_name, _, attribute = name.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")  # a module beside the problem file, also under the installed command
    with contained():
        return getattr(importlib.import_module(module_name), attribute, None)
