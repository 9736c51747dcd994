"""Are today's numbers those of the reference?  ``make reference`` runs this.

    python tests/reference/compare.py [--only TEXT] [--make FILE]

Every point of `points` is computed anew and compared with ``before.nc``, number by number.  Whole numbers, such as a
status, must be equal.  Others may differ by four times the errors that both state, added in squares, and by the
solver's tolerance; numbers without a stated error by a hundredth.  A stated error may be up to three times the earlier
one: numbers that hold because their errors grew would tell nothing.  Exit code 1 if a number does not hold.

Two points depend on rounding, also in the code that made the file.  Of "two heads, semantic, 5" it gave, with AVX2,
``map_eigenvalue[0]`` = .9027 for .9150 in the file, and at alpha = 5.00001 ``on_branch`` = 2 for 0.  "rule
gauss-hermite, semantic" does not converge: at alpha = 1.700001 it gave ``map_eigenvalue[1]`` = .4004 for .3937.

``before.nc`` was made once, by the code before the redesign, and is not made again; ``--make`` writes another file.
"""

import argparse
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import xarray as xr
from points import POINTS, Number, Point

BEFORE = Path(__file__).with_name("before.nc")
ERRORS, GROWTH, UNSTATED = 4.0, 3.0, 0.01
TOLERANCE = 1e-6  # of a number, or of one: ten times the tolerance of the solver, which errors do not include


def table(found: dict[str, list[Number]]) -> xr.Dataset:
    """Numbers of points as a dataset with a row for each; points and names stand there once."""
    rows = [(point, one.name, one.value, one.error, one.whole) for point, numbers in found.items() for one in numbers]
    points, names, values, errors, whole = zip(*rows, strict=True)
    (point, of), (name, called) = (np.unique(column, return_inverse=True) for column in (points, names))
    return xr.Dataset(
        {
            "of": ("number", of.astype(np.int32)),
            "called": ("number", called.astype(np.int32)),
            "value": ("number", np.array(values)),
            "error": ("number", np.array(errors)),
            "whole": ("number", np.array(whole, dtype=np.int8)),
        },
        coords={"point": point, "name": name},
    )


def numbers_by_point(path: Path) -> dict[str, list[Number]]:
    """The numbers of a file that `table` made."""
    found: dict[str, list[Number]] = {}
    with xr.open_dataset(path) as ds:
        points, names = ds["point"].values[ds["of"].values], ds["name"].values[ds["called"].values]
        columns = [points.tolist(), names.tolist(), *(ds[name].values.tolist() for name in ("value", "error", "whole"))]
    for point, name, value, error, whole in zip(*columns, strict=True):
        found.setdefault(point, []).append(Number(name, value, error, bool(whole)))
    return found


def faults(before: Sequence[Number], now: Sequence[Number]) -> Iterator[str]:
    """What does not hold, in sentences."""
    new = {one.name: one for one in now}
    for old in before:
        one = new.pop(old.name, None)
        if one is None:
            yield f"{old.name} is not there any more"
        elif np.isnan(old.value) or np.isnan(one.value):
            if np.isnan(old.value) != np.isnan(one.value):
                yield f"{old.name} was {old.value:.9g}, and is {one.value:.9g}"
        elif old.whole:
            if one.value != old.value:
                yield f"{old.name} was {old.value:g}, and is {one.value:g}"
        else:
            yield from _deviations(old, one)
    for name in new:
        yield f"{name} is new"


def _deviations(old: Number, one: Number) -> Iterator[str]:
    least = TOLERANCE * max(abs(old.value), 1.0)
    stated = not (np.isnan(old.error) or np.isnan(one.error))
    allowed = ERRORS * np.hypot(old.error, one.error) if stated else UNSTATED * abs(old.value)
    # one over an unknown share that is smaller than the tolerance, as where all is known
    boundless = np.isnan(old.error) and min(abs(old.value), abs(one.value)) > 1 / TOLERANCE
    if not boundless and not abs(one.value - old.value) <= allowed + least:
        yield f"{old.name} was {old.value:.9g} +- {old.error:.1g}, and is {one.value:.9g} +- {one.error:.1g}"
    # an identity with so large an error was not checked, since its sides are nearly zero: the error is rounding
    checked = not old.name.startswith("violation_") or ERRORS * old.error < 1
    if stated and checked and one.error > GROWTH * old.error + least:
        yield f"the error of {old.name} was {old.error:.2g}, and is {one.error:.2g}"
    if np.isnan(one.error) != np.isnan(old.error):
        yield f"the error of {old.name} was {old.error:.2g}, and is {one.error:.2g}"


def computed(points: Sequence[Point]) -> Iterator[tuple[Point, list[Number] | Exception, float]]:
    """Every point with its numbers, or what it ended with, and the processor time that it took."""
    for point in points:
        begin = time.process_time()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what they say is in the numbers: status, on_branch, violated
                result: list[Number] | Exception = point.compute()
        except Exception as error:  # a point that fails does not end the others, and is told
            result = error
        yield point, result, time.process_time() - begin


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, or make a file."""
    parser = argparse.ArgumentParser(description="Are today's numbers those of the reference?")
    parser.add_argument("--only", default="", metavar="TEXT", help="points whose name has this in it")
    parser.add_argument("--make", type=Path, metavar="FILE", help="write the numbers into this file")
    options = parser.parse_args(arguments)
    points = [point for point in POINTS if options.only in point.name]
    if not points:
        parser.error(f"no point has {options.only!r} in its name")
    before = {} if options.make else numbers_by_point(BEFORE)
    found = numbers_by_point(options.make) if options.make and options.make.exists() else {}
    points = [point for point in points if point.name not in found]  # a file that was begun is gone on with
    wrong = 0
    for point, result, seconds in computed(points):
        if isinstance(result, Exception):
            said = [f"{type(result).__name__}: {result}"]
        else:
            found[point.name] = result
            said = [] if options.make else list(faults(before.get(point.name, []), result))
            if options.make:
                table(found).to_netcdf(options.make)
        wrong += bool(said)
        print(
            f"{'wrong' if said else 'holds':6} {point.name:45} {seconds:6.1f} s",
            *said[:5],
            sep="\n         ",
            flush=True,
        )
        if len(said) > 5:
            print(f"         and {len(said) - 5} more", flush=True)
    print(f"{len(points) - wrong} of {len(points)} points hold, {sum(map(len, found.values()))} numbers")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
