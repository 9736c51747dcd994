"""Kinds of datasets: their variables and coordinates, those of the theories among them.

A theory is a package of `attnphase.theories` and its name in `THEORIES`; its ``variables`` module has the same four
tables as this one.
"""

from __future__ import annotations

from importlib import import_module

from attnphase.data.variables import (
    CURVE_VARIABLES,
    EXPERIMENT_VARIABLES,
    HISTOGRAM_VARIABLES,
    POINT_VARIABLES,
    SENSITIVITY_VARIABLES,
    SOLUTION_VARIABLES,
    THRESHOLD_VARIABLES,
    TUNED_VARIABLES,
    Variable,
)

__all__ = [
    "COORDINATES",
    "COORDINATES_OF",
    "GLOBAL_ATTRIBUTES",
    "PROBLEM_ATTRIBUTES",
    "RANK",
    "SCHEMAS",
    "SCHEMA_VERSION",
    "THEORIES",
]

SCHEMA_VERSION = 1
"""Of the schema; it grows with every change that a dataset of before does not follow."""

THEORIES = ("one_rsb", "bayes_optimal", "sgd_flow")
"""Packages of theories beside the replica-symmetric one."""

SCHEMAS: dict[str, tuple[Variable, ...]] = {
    "points": POINT_VARIABLES,
    "thresholds": THRESHOLD_VARIABLES,
    "curve": CURVE_VARIABLES,
    "solutions": SOLUTION_VARIABLES,
    "sensitivity": SENSITIVITY_VARIABLES,
    "tuned": TUNED_VARIABLES,
    "experiments": EXPERIMENT_VARIABLES,
    "histogram": HISTOGRAM_VARIABLES,
}
"""Kinds of dataset; the global attribute ``schema`` says which."""

COORDINATES: dict[str, tuple[str, str]] = {
    "branch": ("branch of the fixed points", r"\mathrm{branch}"),
    "start": ("where training or an iteration starts", r"\mathrm{start}"),
    "dimension": ("dimension of the tokens", "d"),
    "seed": ("number of the random instance", r"\mathrm{seed}"),
    "step": ("steps of the optimiser made before", "t"),
    "alpha": ("sample complexity n/d", r"\alpha"),
    "omega": ("weight of the teacher's positional part", r"\omega"),
    "sigma": ("standard deviation of the tokens' entries", r"\sigma"),
    "strength": ("strength of the regulariser", r"\lambda"),
    "ridge": ("strength of the ridge beside the regulariser", r"\lambda_2"),
    "length": ("number of tokens", "L"),
    "student_rank": ("rank of the student", "r"),
    "teacher_rank": ("rank of the teacher", "t"),
    "student_score": ("score of the student", "S"),
    "teacher_score": ("score of the teacher", "T"),
    "student_temperature": ("temperature of the student's score", r"T_{\mathrm{student}}"),
    "teacher_temperature": ("temperature of the teacher's score", r"T_{\mathrm{teacher}}"),
    "student_causal": ("whether the student's tokens attend to none behind them", r"\mathrm{causal\ student}"),
    "teacher_causal": ("whether the teacher's tokens attend to none behind them", r"\mathrm{causal\ teacher}"),
    "tied": ("whether queries and keys share their weights", r"\mathrm{tied}"),
    "width": ("columns of the value matrices", "v"),
    "law.probability": ("probability that all tokens share their cluster", r"P_{\mathrm{same}}"),
    "spectrum.variance": ("mean eigenvalue of the tokens' covariance", r"\sigma^2"),
    "spectrum.exponent": ("exponent of the covariance's power law", r"\beta"),
    "spectrum.fraction": ("share of directions with the first of two eigenvalues", "f"),
    "standard_error": ("relative standard error asked for on q", r"\delta q / q"),
    "integration_nodes": ("integration nodes asked for", r"n_{\mathrm{nodes}}"),
    "integration_seed": ("seed of the integration nodes", r"\mathrm{seed}"),
    "arclength": ("length of the curve from its start, in units of the start's overlaps and of half the range", "s"),
    "point": ("number of the point on its curve, from 1", "i"),
    "solution": ("rank of the solution by its training loss, from 1", "n"),
    "parameter": ("name of a trained parameter of the loss", r"\mathrm{parameter}"),
    "mechanism": ("part of the embeddings that attention saw while it was frozen", r"\mathrm{mechanism}"),
    "run": ("number of the run", r"\mathrm{run}"),
    "stage": ("stage of training", r"\mathrm{stage}"),
    "epoch": ("epochs of the stage made", "t"),
    "entries": ("entries of the attention matrices that are counted", r"\mathrm{entries}"),
    "symbols": ("symbols of the given sequences", "x"),
    "teacher.noise": ("variance of the noise on every entry of the labels", r"\Delta"),
}
"""What a coordinate is called, and its symbol."""

COORDINATES_OF: dict[str, tuple[str, ...]] = {
    "points": ("branch", "alpha"),
    "thresholds": (),
    "curve": ("branch", "alpha", "arclength"),
    "solutions": ("branch", "alpha", "solution"),
    "sensitivity": ("branch", "alpha"),
    "tuned": ("branch", "alpha"),
    "experiments": ("start", "dimension", "alpha", "seed"),
    "histogram": ("mechanism", "run", "stage", "epoch", "entries", "symbols"),
}
"""Coordinates that every dataset of a kind has."""

RANK = {"branch": 0, "start": 0, "dimension": 1, "alpha": 3, "seed": 4, "arclength": 3, "point": 3, "solution": 3}
"""Order of the dimensions: lowest first, and fields of the problem have 2."""

for _theory in THEORIES:
    _tables = import_module(f"attnphase.theories.{_theory}.variables")
    SCHEMAS |= _tables.SCHEMAS
    COORDINATES |= _tables.COORDINATES
    COORDINATES_OF |= _tables.COORDINATES_OF
    RANK |= _tables.RANK

PROBLEM_ATTRIBUTES = {
    "problem": "the problem as TOML; for a swept field, the values of its coordinate count",
    "problem_hash": "`Problem.hash`: 16 hexadecimal digits that all problems have in common that are the same model",
}
"""Global attributes of datasets on a problem."""

GLOBAL_ATTRIBUTES = {
    "title": "what the data is",
    "Conventions": "CF-1.11",
    "schema": "kind of dataset: " + " or ".join(SCHEMAS),
    "schema_version": f"version of the schema, {SCHEMA_VERSION}; a file of another version is refused",
    "seed": "seed of the integration nodes; of experiments, of all their random numbers",
    "rule": "integration rules used; of experiments, the optimiser with its settings",
    "attnphase_version": "version of attnphase",
    "numpy_version": "version of NumPy",
    "scipy_version": "version of SciPy",
    "numba_version": "version of Numba",
    "python_version": "version of Python",
    "created": "when, in UTC, ISO 8601",
    "history": "one line for each command",
}
"""Global attributes of every dataset."""
