"""Modules that are loaded when one of their names is first used, so that a refused argument waits for none of them.

`lazy_loader` (SPEC 1) and `importlib.util.LazyLoader`, which it is made of, put modules that are not loaded yet into
``sys.modules``.  There whoever looks through all modules loads them, as `inspect` and SciPy do, and fails if
an optional dependency is missing; and type checkers know nothing of what `lazy_loader.load` returns.
"""

from __future__ import annotations

import builtins
from contextlib import contextmanager
from importlib import import_module
from threading import RLock
from types import ModuleType

TYPE_CHECKING = False  # that of typing takes longer to import than the package
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

__all__ = ["loaded_on_use"]

_ONE_AT_A_TIME = RLock()


class _Later(ModuleType):
    """In place of a module: each of its names is that of the module, which is imported if it is not there yet."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__version__":  # asked by whoever looks through a module, as doctest does
            raise AttributeError(name)
        return getattr(import_module(self.__name__), name)


@contextmanager
def loaded_on_use(importer: str) -> Iterator[None]:
    """Within the block, ``import module`` and ``from package import module`` load nothing yet.

    Parameters
    ----------
    importer : str
        ``__name__`` of the module that has the block; other imports meanwhile, in other threads, are as ever.
    """
    usual = builtins.__import__

    def later(name: str, of: Any = None, here: Any = None, parts: Sequence[str] | None = (), level: int = 0) -> Any:
        if of is None or of.get("__name__") != importer:
            return usual(name, of, here, parts or (), level)
        found = _Later(name)
        vars(found).update({part: _Later(f"{name}.{part}") for part in parts or ()})
        return found

    with _ONE_AT_A_TIME:
        usual, builtins.__import__ = builtins.__import__, later
        try:
            yield
        finally:
            builtins.__import__ = usual
