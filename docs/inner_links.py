"""Links and frames of the built site that lead nowhere within it, whoever wrote them: Sphinx knows only its own."""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

__all__ = ["broken"]


class _Page(HTMLParser):
    """Where a page leads, and the places in it to which others lead."""

    def __init__(self) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.places: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.links.add(value)
            elif value and (name == "id" or (tag, name) == ("a", "name")):
                self.places.add(value)


def broken(site: Path) -> Iterator[tuple[str, str]]:
    """Pages below a folder, and what they link to that is not there."""
    pages: dict[Path, _Page] = {}
    for file in sorted(site.rglob("*.html")):
        if "_static" in file.relative_to(site).parts:  # of the theme: a template, no page
            continue
        pages[file.resolve()] = page = _Page()
        page.feed(file.read_text(encoding="utf-8"))
    for file, page in pages.items():
        for link in sorted(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            there = pages.get(target)
            lost = bool(parts.fragment) and there is not None and unquote(parts.fragment) not in there.places
            if lost or not target.exists():
                yield file.relative_to(site.resolve()).as_posix(), link
