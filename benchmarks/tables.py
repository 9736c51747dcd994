"""One table of a record, and one of how it differs from another."""

from __future__ import annotations

from rich.table import Table

from benchmarks.record import YARDSTICK, Figure, Record

__all__ = ["change_table", "heading", "table_of"]


def heading(record: Record) -> str:
    """What was measured, where, and how quiet it was."""
    before, after = record.load
    clock = {"wall": "wall-clock times", "cpu": "CPU times, all cores together"}[record.clock]
    return f"{record.commit}, {record.date}; {record.machine}; {clock}; load {before:.1f} before and {after:.1f} after"


def number(value: float) -> str:
    """Three significant digits, and all before the point."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def maps(figure: Figure, record: Record) -> float | None:
    """A time in units of the recipe's single map; None if it is no time, or the map was not measured."""
    yardstick = record.yardstick
    return None if yardstick is None or figure.seconds is None else figure.seconds / yardstick


def remark(figure: Figure, record: Record) -> str:
    """The figure's detail, and how many times faster it is than what it is held against."""
    other = record.by_name.get(figure.beside or "")
    faster = "" if other is None else f"{number(other.median / figure.median)} times faster than {other.name}"
    return "; ".join(text for text in (faster, figure.detail) if text)


def table_of(record: Record) -> Table:
    """All figures: median, least and largest of the repeats."""
    table = Table(box=None, pad_edge=False)
    table.add_column("figure", no_wrap=True)
    for name in ("median", "min", "max"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("recipe's maps", justify="right", no_wrap=True)
    table.add_column("remark")
    for f in record.figures:
        multiple = maps(f, record)
        table.add_row(f.name, *spread(f), f.unit, "" if multiple is None else number(multiple), remark(f, record))
    return table


def change_table(now: Record, then: Record) -> Table:
    """Ratios now/then of all figures.

    Of the medians, with the least and the largest that repeats of the two sides can give: from the least of now over
    the largest of then, to the largest of now over the least of then. The last column has the medians' ratio in units
    of the recipe's map of the same call, where a machine that was slow as a whole cancels.
    """
    table = Table(box=None, pad_edge=False)
    table.add_column("figure", no_wrap=True)
    names = ("then: median", "min", "max", "now: median", "min", "max", "", "now/then", "from", "to", "in maps")
    for name in names:
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    before, after = then.by_name, now.by_name
    for name in (*after, *(name for name in before if name not in after)):
        old, new = before.get(name), after.get(name)
        ratios = [""] * 4 if old is None or new is None else changes(new, now, old, then)
        unit = next(f.unit for f in (new, old) if f is not None)
        table.add_row(name, *spread(old), *spread(new), unit, *ratios)
    return table


def spread(figure: Figure | None) -> list[str]:
    """Median, least and largest of the repeats; nothing of a figure that was not measured."""
    if figure is None:
        return ["", "", ""]
    return [number(x) for x in (figure.median, min(figure.values), max(figure.values))]


def changes(new: Figure, now: Record, old: Figure, then: Record) -> list[str]:
    """The ratio of the medians, the least and the largest one, and that in units of each side's recipe."""
    ratios = [new.median / old.median, min(new.values) / max(old.values), max(new.values) / min(old.values)]
    multiple, earlier = maps(new, now), maps(old, then)
    if multiple is not None and earlier is not None and new.name != YARDSTICK:
        ratios.append(multiple / earlier)
    return [number(ratio) for ratio in ratios] + [""] * (4 - len(ratios))
