"""Time the solver beside the published recipe's single map, print one table, keep the figures.

    python -m benchmarks [--against FILE] [--output FILE] [--only GROUP ...] [--recipe] [--full [N]]
    python -m benchmarks --read FILE --against FILE

Every figure is the median of its repeats, which are measured in turn. Without other options this takes at most five
minutes on two cores, and longer where kernels have to be compiled first. With ``--against`` the changes are printed
too: the ratio of the medians, and the smallest and largest ratio of two repeats.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import NoReturn, get_args

from pydantic import ValidationError
from rich.console import Console

from benchmarks.measuring import Options, Row, measured
from benchmarks.record import Clocks, Record, commit, default_path, machine
from benchmarks.tables import change_table, heading, table_of

GROUPS = {
    "local": ("local_problem", "rows"),
    "map": ("one_map", "rows"),
    "point": ("fixed_points", "point_rows"),
    "memory": ("fixed_points", "memory_rows"),
    "start": ("commands", "start_rows"),
    "sweep": ("commands", "sweep_rows"),
    "risk": ("risk", "rows"),
    "histogram": ("histogram", "rows"),
    "ingredients": ("ingredients", "rows"),
}
"""Where the rows of a group are made; those of the recipe always are."""

_ON_REQUEST = {"ingredients"}
"""Groups that compile a score of models, which takes minutes."""

_WIDTH = 150  # of a table at least, so that nothing is left out


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options of a call."""
    head, _, _ = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=head)
    add = parser.add_argument
    add("--output", type=Path, help="where the figures are saved (default: benchmarks/results/DATE-COMMIT.json)")
    add("--against", type=Path, metavar="FILE", help="print the changes since these saved figures too")
    add("--read", type=Path, metavar="FILE", help="measure nothing, take the figures of a file")
    add(
        "--only",
        nargs="+",
        choices=tuple(GROUPS),
        default=[g for g in GROUPS if g not in _ON_REQUEST],
        help="these alone",
    )
    add("--repeats", type=positive, default=5, help="of every figure (default: 5)")
    add("--threads", type=positive, help="threads and workers of what can use several (default: all cores)")
    add("--clock", choices=get_args(Clocks), default="wall", help="cpu: what the cores spent, on a busy machine")
    add("--recipe", action="store_true", help="run the recipe to its own stopping rule, a minute")
    add("--full", type=positive, nargs="?", const=1, default=0, metavar="N", help="the main job and thresholds too")
    add("--quick", action="store_true", help="tiny sizes: figures without a meaning, to see that all of it runs")
    return parser.parse_args(arguments)


def positive(text: str) -> int:
    """A number of times."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def rows(groups: Sequence[str], options: Options) -> list[Row]:
    """What is to be measured; whatever it needs is made before the first measurement."""
    made: list[Row] = []
    for module, function in (("fixed_points", "recipe_rows"), *(GROUPS[group] for group in groups)):
        made.extend(getattr(importlib.import_module(f"benchmarks.{module}"), function)(options))
    return made


def record_of(groups: Sequence[str], options: Options) -> Record:
    """Measure."""
    begin = datetime.now().astimezone()
    load, measured_commit = os.getloadavg()[0], commit()  # files may change while it runs
    figures = measured(rows(groups, options), options.repeats)
    return Record(
        date=begin.isoformat(timespec="seconds"),
        commit=measured_commit,
        machine=machine(),
        clock=options.clock,
        load=(load, os.getloadavg()[0]),
        figures=figures,
    )


def read(path: Path) -> Record:
    """Saved figures.

    Raises
    ------
    SystemExit
        There are none in the file.
    """
    try:
        return Record.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValidationError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it holds something else"
        _refuse(f"{path}: no figures of this benchmark: {reason}.")


def _refuse(sentence: str) -> NoReturn:
    print(f"python -m benchmarks: {sentence}", file=sys.stderr)
    raise SystemExit(2)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure or read, print, save."""
    asked = parsed(arguments)
    if asked.output is not None:
        try:
            asked.output.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            _refuse(f"--output {asked.output}: its folder cannot be made: {error.strerror}.")
        if not os.access(asked.output.parent, os.W_OK) or asked.output.is_dir():
            _refuse(f"--output {asked.output}: this cannot be written.")
    then = None if asked.against is None else read(asked.against)
    now = None if asked.read is None else read(asked.read)
    clock = asked.clock if now is None else now.clock
    if then is not None and then.clock != clock:
        raise SystemExit(f"{asked.against} has {then.clock} times, which cannot be held against {clock} times.")
    if now is None:
        options = Options(asked.repeats, asked.threads, clock, asked.quick, asked.full, asked.recipe)
        now = record_of(asked.only, options)
    console = Console(width=max(Console().width, _WIDTH), highlight=False)
    console.print(heading(now), table_of(now), sep="\n")
    if then is not None:
        console.print("", f"now:  {heading(now)}", f"then: {heading(then)}", change_table(now, then), sep="\n")
    if asked.read is None:
        path = asked.output or default_path(now)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(now.model_dump_json(indent=1), encoding="utf-8")
        console.print(f"saved in {path}")


if __name__ == "__main__":
    main()
