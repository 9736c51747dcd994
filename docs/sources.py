"""When a page is run again: its text has changed, or a source of the package on which its results depend."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyter_cache import get_cache

if TYPE_CHECKING:
    from sphinx.application import Sphinx

__all__ = ["KEPT", "connect", "forget_results_of_others", "package_hash"]

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "docs" / "_build" / "executed"
"""Executed notebooks, in a folder named after the sources of the package."""

_SOURCES = ("attnphase", "derivations", "data", "docs/execution.py", "constraints.txt")


def package_hash(root: Path = ROOT) -> str:
    """A hash of all that pages run, beside their own text."""
    found = sha256()
    for path in _files(root):
        found.update(f"{path.relative_to(root).as_posix()}\n".encode() + path.read_bytes())
    return found.hexdigest()[:16]


def _files(root: Path) -> Iterator[Path]:
    for name in _SOURCES:
        place = root / name
        files = [place] if place.is_file() else sorted(path for path in place.rglob("*") if path.is_file())
        yield from (path for path in files if "__pycache__" not in path.parts)


def forget_results_of_others(current: str, gallery: Path) -> Path:
    """Where notebooks of these sources are kept; results of other sources are removed, also those of the gallery."""
    place = KEPT / current
    if not place.exists():
        shutil.rmtree(KEPT, ignore_errors=True)
        place.mkdir(parents=True)
        for known in gallery.glob("*.md5"):
            known.unlink()
    get_cache(place).list_cache_records()  # its database is made before several processes want it
    return place


def connect(app: Sphinx, current: str) -> None:
    """Read every page anew when the sources have changed, and a page whose notebook failed at every build."""
    app.add_config_value("package_sources", current, "env", types=frozenset({str}))
    app.connect("doctree-read", _again_if_failed)


def _again_if_failed(app: Sphinx, doctree: Any) -> None:
    del doctree
    notebook = getattr(app.env, "nb_metadata", {}).get(app.env.docname, {})
    if notebook.get("exec_data", {}).get("succeeded") is False:
        app.env.note_reread()
