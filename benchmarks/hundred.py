"""One hundred drawn problems against an independent program: whether each stated error holds.

    python benchmarks/hundred.py [--only attention] [--problems 3 17] [--failures FILE]
    python benchmarks/hundred.py --references [--only attention] [--problems 3 17]

The first form solves the problems with the default integration rule and compares every number with the references in
`benchmarks/hundred.json`. The second form computes references anew: `benchmarks.independent_scalar` and
`benchmarks.independent_attention` share no rule, no start and no minimiser with the package.

**Drawn.** Problem number i comes from the seed (37, i), fixed before anything was solved: σ, λ and α are log-uniform
within .1 to 3, 1e-4 to 1 and .3 to 30. There are 28 problems of attention (16 with L = 2, 12 with L = 3; one token has
one weight, so that its loss is zero), and 18 each of the square, Huber, logistic and hinge losses (12 with L = 1, and 3
each with L = 2 and 3, where the loss is one of the sums of the tokens' fields).

**Claimed.** A point claims its numbers if its status is `converged`, its `on_branch` is decided, and every number has a
stated error; else it is flagged. A point that has merged with the uninformed one claims that the branch does not exist:
its order parameter is zero, without an error, and so is the reference's, or the claim is wrong.

**Counted.** The deviation of a number is |value - reference| over the root of the sum of both squared errors. A problem
is wrong if it is not flagged and one deviation exceeds 4. The test passes if none is wrong and at most 10 are flagged.
A reference resolves a stated error if its own error is at most half of it; numbers without that are counted, too.

**Limits of the saved references.** Errors of attention come from eight shifts: a deviation between 4 and 6 may be
chance, and needs a finer reference. They are computed with `--relative 2e-4`.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.independent_attention import RELATIVE, Attention, attention_reference
from benchmarks.independent_scalar import HUBER_WIDTH, Scalar, scalar_reference

__all__ = [
    "LARGEST",
    "MOST_FLAGGED",
    "Drawn",
    "Outcome",
    "Reference",
    "compare",
    "departures",
    "drawn",
    "loss_fields",
    "read",
    "solved",
    "summary",
    "write",
]

SEED = 37
REFERENCES = Path(__file__).with_suffix(".json")
VERSION = 2
"""Of the independent programs: a change of their numbers raises it."""
QUANTITIES = ("q", "V", "m", "theta", "test_error", "training_loss")
LARGEST = 4.0
MOST_FLAGGED = 10

_BANDED = [[0.6, 0.3, 0.1], [0.3, 0.4, 0.3], [0.1, 0.3, 0.6]]
_LINE = [[1.0, 0.0, -1.0], [0.0, 0.0, 0.0], [-1.0, 0.0, 1.0]]  # encodings along one direction
_SIMPLEX = [[1.0, -0.5, -0.5], [-0.5, 1.0, -0.5], [-0.5, -0.5, 1.0]]
_SIZES = {"attention": {2: 16, 3: 12}} | {
    name: {1: 12, 2: 3, 3: 3} for name in ("square", "huber", "logistic", "hinge")
}
# of y = k + noise and h, or of the label's sign
_FORMULAS = {
    "square": "0.5*({y}-({h}))**2",
    "huber": f"0.5*({{y}}-({{h}}))**2 - 0.5*relu(abs({{y}}-({{h}}))-{HUBER_WIDTH})**2",
    "logistic": "softplus(-sign({y})*({h}))",
    "hinge": "relu(1-sign({y})*({h}))",
}

Numbers = Mapping[str, float | list[float]]


@dataclass(frozen=True)
class Drawn:
    """A problem of the hundred.

    Attributes
    ----------
    number : int
    loss, branch : str
    alpha : float
    fields : dict
        The package's problem, as nested tables.
    independent : Scalar or Attention
        The same, as the independent programs take it.
    """

    number: int
    loss: str
    branch: str
    alpha: float
    fields: dict[str, Any]
    independent: Scalar | Attention


@dataclass(frozen=True)
class Reference:
    """Values of the independent program and their errors, by the quantity's name."""

    values: Numbers
    errors: Numbers


@dataclass(frozen=True)
class Outcome:
    """What comparing a problem gives.

    Attributes
    ----------
    flag : str
        Why the point claims nothing; empty if it does.
    deviations : dict of str to float
        By the quantity's name, the largest over tokens.
    unresolved : tuple of str
        Quantities whose reference's error is more than half of the stated one.
    """

    flag: str
    deviations: dict[str, float]
    unresolved: tuple[str, ...] = ()

    @property
    def wrong(self) -> list[str]:
        """The quantities that claim to be right and are not."""
        return [] if self.flag else [name for name, value in self.deviations.items() if not value <= LARGEST]


def drawn() -> list[Drawn]:
    """The hundred problems."""
    shapes = [
        (loss, length, turn) for loss in _SIZES for length, count in _SIZES[loss].items() for turn in range(count)
    ]
    return [_problem(number, *shape) for number, shape in enumerate(shapes)]


def _problem(number: int, loss: str, length: int, turn: int) -> Drawn:
    generator = np.random.default_rng([SEED, number])

    def between(low: float, high: float) -> float:
        return float(f"{np.exp(generator.uniform(np.log(low), np.log(high))):.4g}")

    sigma, ridge, alpha = between(0.1, 3), between(1e-4, 1), between(0.3, 30)
    fields: dict[str, Any] = {
        "tokens": {"length": length, "sigma": sigma},
        "regularizer": {"strength": ridge},
        "integration": {"seed": number},
    }
    if loss == "attention":
        return _attention(number, turn, alpha, fields, round(float(generator.uniform(0.05, 0.6)), 3))
    # half of the problems of one token have noisy labels
    share = between(0.01, 1) if length == 1 and turn % 2 else 0.0
    independent = Scalar(loss, length, sigma, ridge, alpha, float(f"{share * sigma**2:.4g}"))
    return Drawn(number, loss, "semantic", alpha, fields | loss_fields(independent), independent)


def loss_fields(problem: Scalar) -> dict[str, Any]:
    """Tables of the package's problem that say the loss, its noise and that there are no encodings."""
    tokens = range(problem.length)
    h, k = ("+".join(f"{letter}{token}_0" for token in tokens) for letter in "hk")
    y = f"({k}+noise)" if problem.noise else f"({k})"
    formula = {"kind": "expression", "expression": _FORMULAS[problem.loss].format(y=y, h=h)}
    own = problem.length == 1 and problem.loss != "huber"
    fields = {"positions": {"kind": "none"}, "loss": {"kind": problem.loss} if own else formula}
    return fields | ({"teacher": {"noise": problem.noise}} if problem.noise else {})


def _attention(number: int, turn: int, alpha: float, fields: dict[str, Any], omega: float) -> Drawn:
    length, sigma = fields["tokens"]["length"], fields["tokens"]["sigma"]
    ridge = fields["regularizer"]["strength"]
    if length == 2:
        branch = ("semantic", "positional")[turn % 2]
        mixing, gram = [[[0.6, 0.4], [0.4, 0.6]], [[0.3, 0.7], [0.8, 0.2]]][turn // 2 % 2], [[1.0, -1.0], [-1.0, 1.0]]
    else:
        # uniform mixing tells no tokens apart: a positional branch needs another
        branch = ("semantic", "semantic", "positional")[turn % 3]
        default = turn % 3 == 0
        mixing, gram = ([[1 / 3] * 3] * 3, _SIMPLEX) if default else (_BANDED, _LINE)
    fields["teacher"] = {"omega": omega, "mixing": mixing}
    fields["positions"] = {"kind": "gram", "gram": gram}
    independent = Attention(branch, sigma, ridge, alpha, omega, np.array(mixing), np.array(gram))
    return Drawn(number, "attention", branch, alpha, fields, independent)


def _array(numbers: float | Sequence[float]) -> NDArray[np.float64]:
    return np.asarray(numbers, dtype=float).ravel()


def departures(
    values: Mapping[str, Any], errors: Mapping[str, Any], reference: Reference
) -> Iterator[tuple[str, NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]]:
    """Quantities that the reference has, |value - reference|, stated errors and the reference's own.

    A common sign of all m, and of all θ, is a symmetry.
    """
    for name in QUANTITIES:
        if name in reference.values:
            value, stated = _array(values[name]), _array(errors[name])
            right, own = (np.broadcast_to(_array(of[name]), value.shape) for of in (reference.values, reference.errors))
            yield name, np.abs(value - right if value @ right >= 0 else value + right), stated, own


def compare(values: Mapping[str, Any], errors: Mapping[str, Any], reference: Reference, flag: str = "") -> Outcome:
    """How far a point's numbers are from the reference, in standard errors."""
    deviations, unresolved = {}, []
    for name, off, stated, own in departures(values, errors, reference):
        if np.isnan(stated).any():
            flag = flag or f"{name} has no stated error"
        with np.errstate(divide="ignore", invalid="ignore"):
            deviations[name] = float(np.max(np.where(off == 0, 0.0, off / np.hypot(stated, own))))
        if np.any(own > stated / 2):
            unresolved.append(name)
    return Outcome(flag, deviations, tuple(unresolved))


def solved(fields: Mapping[str, Any], alpha: float, branch: str) -> tuple[Any, str]:
    """The package's point, and why it claims nothing, if so."""
    import attnphase as ap
    from attnphase.fixed_points.settings import SolverSettings
    from attnphase.fixed_points.solver import solve_point
    from attnphase.solvers.iteration import Status
    from attnphase.state_evolution.branches import Identity

    settings = SolverSettings(threads=1, stability=False)
    point = solve_point(ap.Problem.from_dict(fields), alpha, branch, settings=settings)
    if point.status is not Status.converged:
        return point, point.status.name
    return point, point.on_branch.name if point.on_branch is Identity.not_decided else ""


def reference_of(problem: Drawn, relative: float = RELATIVE) -> Reference:
    """Compute a reference; m of a scalar problem is zero, as are its tokens' encodings."""
    if isinstance(problem.independent, Scalar):
        return Reference(*scalar_reference(problem.independent))
    return Reference(*attention_reference(problem.independent, relative))


def read(path: Path = REFERENCES, made: tuple[int, int] = (SEED, VERSION)) -> dict[int, Reference]:
    """The saved references.

    Raises
    ------
    ValueError
        They are not of the seed and of the programs' version that are given.
    """
    saved = json.loads(path.read_text(encoding="utf-8"))
    if (saved["seed"], saved["version"]) != made:
        raise ValueError(f"{path} is of seed {saved['seed']} and version {saved['version']}: use --references")
    return {each["number"]: Reference(each["values"], each["errors"]) for each in saved["references"]}


def write(
    references: Mapping[int, Reference], path: Path = REFERENCES, made: tuple[int, int] = (SEED, VERSION)
) -> None:
    """Save references, one line each."""
    lines = [
        json.dumps({"number": number, "values": dict(one.values), "errors": dict(one.errors)})
        for number, one in sorted(references.items())
    ]
    head = f'{{"seed": {made[0]}, "version": {made[1]}, "references": [\n'
    path.write_text(head + ",\n".join(lines) + "\n]}\n", encoding="utf-8")


def summary(outcomes: Sequence[Outcome]) -> tuple[str, bool]:
    """A sentence on all problems, and whether the test passes."""
    wrong, flagged = (sum(map(bool, each)) for each in ([o.wrong for o in outcomes], [o.flag for o in outcomes]))
    unresolved = sum(len(outcome.unresolved) for outcome in outcomes if not outcome.flag)
    allowed = MOST_FLAGGED * len(outcomes) / 100
    passed = wrong == 0 and flagged <= allowed
    text = (
        f"{len(outcomes)} problems: {wrong} wrong, {flagged} flagged (at most {allowed:g}),"
        f" {unresolved} numbers with a reference that does not resolve half their stated error:"
        f" {'passed' if passed else 'failed'}"
    )
    return text, passed


def failure_lines(problem: Drawn, point: Any, reference: Reference, outcome: Outcome) -> Iterator[str]:
    """Markdown on a wrong or flagged problem: the problem, and a row for every number."""
    yield f"\n## problem {problem.number}: {outcome.flag or 'wrong: ' + ', '.join(outcome.wrong)}\n"
    yield f"`ap.solve(ap.Problem.from_dict({problem.fields}), alpha={problem.alpha}, branch={problem.branch!r})`"
    yield f"\nrule {point.rule}, nodes {point.nodes}, {point.on_branch.name}, residual {point.residual:.0e}\n"
    yield "| quantity | value | stated error | reference | its error | deviation |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for name, deviation in outcome.deviations.items():
        rows = point.values[name], point.errors[name], reference.values[name], reference.errors[name]
        cells = [" ".join(f"{one:.7g}" for one in _array(row)) for row in rows]
        yield f"| {name} | " + " | ".join(cells) + f" | {deviation:.1f} |"


def main() -> None:
    """Compute references, or solve and compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", choices=_SIZES, nargs="+", default=tuple(_SIZES), help="these losses alone")
    parser.add_argument("--problems", type=int, nargs="+", metavar="NUMBER", help="these problems alone")
    parser.add_argument("--references", action="store_true", help="compute the references anew and save them")
    parser.add_argument("--relative", type=float, default=RELATIVE, help="error asked for of attention's references")
    parser.add_argument("--failures", type=Path, metavar="FILE", help="describe what is wrong or flagged in this file")
    asked = parser.parse_args()
    chosen = [one for one in drawn() if one.loss in asked.only and one.number in (asked.problems or range(100))]
    if asked.references:
        references = read() if REFERENCES.exists() else {}
        for problem in chosen:
            begin = time.perf_counter()
            references[problem.number] = reference_of(problem, asked.relative)
            write(references)
            print(problem.number, problem.loss, f"{time.perf_counter() - begin:.1f} s", flush=True)
        return
    outcomes, references, lines = [], read(), []
    missing = [one.number for one in chosen if one.number not in references]
    if missing:
        raise SystemExit(f"no references of the problems {missing}: compute them with --references --problems")
    print("problem | loss | L | branch | identity | rule | nodes | seconds | largest deviation | ")
    for problem in chosen:
        begin = time.perf_counter()
        point, flag = solved(problem.fields, problem.alpha, problem.branch)
        outcome = compare(point.values, point.errors, references[problem.number], flag)
        outcomes.append(outcome)
        worst = max(outcome.deviations, key=lambda name: outcome.deviations[name])
        said = outcome.flag or ("wrong: " + ", ".join(outcome.wrong) if outcome.wrong else "")
        cells = [problem.number, problem.loss, problem.fields["tokens"]["length"], problem.branch, point.on_branch.name]
        cells += [point.rule, point.nodes, f"{time.perf_counter() - begin:.1f}"]
        cells += [f"{worst} {outcome.deviations[worst]:.1f}", said]
        print(" | ".join(map(str, cells)), flush=True)
        if said:
            lines += failure_lines(problem, point, references[problem.number], outcome)
            if asked.failures:
                asked.failures.write_text("\n".join(lines) + "\n", encoding="utf-8")
    text, passed = summary(outcomes)
    print(text)
    raise SystemExit(not passed)


if __name__ == "__main__":
    main()
