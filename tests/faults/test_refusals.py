"""What is refused: every row ends in one sentence that names the argument or field, and where there is one the remedy.

Rows of other subjects belong here too: ``"words of the message": call``.

Not public: `load_kernels` fails here, for what is refused begins no work.
"""

import inspect
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sympy
from command import run
from models import model

import attnphase as ap
from attnphase import figures, reference
from attnphase import functions as symbolic
from attnphase.errors import AttnphaseError

PAPER = ap.Problem()
TWO: Any = [{"sigma": 0.5, "mean": [1.5]}, {"sigma": 0.4, "mean": [-1.5]}]
MIXTURE = PAPER.with_fields({"tokens.kind": "mixture", "tokens.clusters": TWO})
ONE = {"tokens.length": 1, "positions.kind": "none"}
ATOM = {"weight": 0.5, "variances": [0.2, 0.3]}
WHOLE = {"weight": 1, "variances": [0.2, 0.3]}
TAUGHT = {"tokens.spectrum": [{**WHOLE, "teacher": [1]}]}
WEIGHTED = MIXTURE.with_fields({"tokens.law.weights": [0.4, 0.6]})
CERTAIN = WEIGHTED.with_fields({"tokens.law.weights[0]": 1})
VALUES: Any = {"teacher.prior": "atoms", "teacher.prior_values": [-1, 1], "teacher.prior_probabilities": [0.5, 0.5]}
DEEP: Any = [0.5]
for _ in range(500):
    DEEP = [DEEP]


def fields(values: Any, problem: ap.Problem = PAPER) -> Callable[[], Any]:
    return lambda: problem.with_fields(values)


def mixed(**values: Any) -> Callable[[], object]:
    return fields({f"tokens.{name}": value for name, value in values.items()}, MIXTURE)


def law(**values: Any) -> Callable[[], object]:
    return mixed(law=values)


def atoms(*values: Any) -> Callable[[], Any]:
    return fields({"tokens.spectrum": [*values]})


def spectrum(**values: Any) -> Callable[[], object]:
    return fields({"tokens.spectrum": values})


def loss(text: Any, **more: Any) -> Callable[[], Any]:
    return fields({**ONE, "loss.kind": "expression", "loss.expression": text, **more})


def penalty(**values: Any) -> Callable[[], Any]:
    return fields({f"regularizer.{name}": value for name, value in values.items()})


def csv(text: str, field: str = "tokens.spectrum", **more: Any) -> Callable[[], object]:
    return lambda: (Path("file.csv").write_text(text, "latin-1"), PAPER.with_fields({field: "file.csv", **more}))


def table(**sections: Any) -> Callable[[], object]:
    return lambda: ap.Problem.from_dict(sections)


def trained(text: str, number: float, penalty: str, name: str = "b") -> Callable[[], Any]:
    return loss(text, **{"loss.parameters": {name: number}, "loss.trained": {"b": penalty}})


def matrices(covariances: Any, teacher: Any = ((1,), (1,)), **more: Any) -> Callable[[], object]:
    return lambda: ap.Spectrum.from_matrices(covariances, np.zeros((2, 2)), np.array(teacher), **more)


def optimal(channel: str | None, values: Any = None, name: str = "square", **more: Any) -> Callable[[], object]:
    return lambda: ap.bayes_optimal(model(name, values), 0.5, channel=channel, **more)


def toml(text: str) -> Callable[[], object]:
    return lambda: ap.Problem.from_toml(text)


def score(row: Callable[..., object]) -> Callable[[], object]:
    return lambda: ap.register_score("own", row)


def of(function: Callable[..., object], *args: Any, **options: Any) -> Callable[[], object]:
    return lambda: function(PAPER, *args, **options)


PROBLEMS: dict[str, Callable[[], object]] = {
    # numbers, words and tables
    "tokens.length must be a whole number from 1 to 16, but it is true": fields({"tokens.length": True}),
    "tokens.sigma must be a positive number from 1e-6 to 1e6": fields({"tokens.sigma": 10**400}),
    "teacher.omega must be a number from 0 to 1": fields({"teacher.omega": 1.5}),
    "student.tied must be true or false": fields({"student.tied": "yes"}),
    "teacher.mixing must be a square table of numbers": fields({"teacher.mixing": [1, 2]}),
    "but it has the eigenvalue -1.": fields({"positions.gram": [[1, 2], [2, 1]]}),
    "has 1 rows, but must be 2 by 1: tokens.length is 2": fields({"positions.teacher": [[0.1]]}),
    "its row 1 has length 1": fields({"positions.gram": [[1, 0], [0]]}),
    "has products that no encodings p_l and the teacher's columns can have": fields(
        {"positions.teacher": [[1.2], [-1.2]]}
    ),
    "which positions.teacher does not allow": fields(
        {"teacher.prior": "rademacher", "positions.teacher": [[0.2], [-0.2]]}
    ),
    "integration.rule must be": fields({"integration.rule": "simpson"}),
    "integration.nodes must be at most 256": fields({"integration.rule": "gauss-hermite", "integration.nodes": 257}),
    "a power of two": fields({"integration.rule": "sobol", "integration.nodes": 1000}),
    "whose nodes are fixed": fields({"integration.rule": "published", "integration.nodes": 12}),
    "needs tokens.length = 2": fields({"integration.rule": "published", "tokens.length": 3}),
    # keys
    'did you mean "teacher.mixing"?': fields({"teacher.mixng": [[1]]}),
    'did you mean "teacher.omega"?': lambda: ap.Problem.from_dict({"omega": 0.3}),
    'tokens must be a table, but it is "problem.toml"': lambda: ap.Problem("problem.toml"),  # type: ignore[arg-type]
    "teacher.mixing must be a square table": fields({"teacher.mixing": DEEP}),
    # files
    "nested too deeply": toml(f"[teacher]\n{'a.' * 20_000}b = 1"),
    "about 100": toml("[teacher]\nmixing = [" + ("[" + "0.5," * 1000 + "],") * 1000 + "]"),
    "at most 65536 atoms": toml("[tokens]\nspectrum = [" + "{weight = 1e-6, variances = [0.2, 0.3]}," * 10**5 + "]"),
    "missing.csv: there is no such file": fields({"tokens.spectrum": "missing.csv"}),
    # mixtures
    "needs tokens.clusters": fields({"tokens.kind": "mixture"}),
    "from 1 to 64 clusters": mixed(clusters=[{}] * 65),
    "means of length 1 and 2": mixed(clusters=[{"mean": [1]}, {"mean": [1, 2]}]),
    "has products that no cluster directions": mixed(mean_positions=[[0.1], [0.1]]),
    "tokens.law.weights must sum to 1, but it sums to 0.9": law(weights=[0.3, 0.6]),
    "tokens.law.table must sum to 1, but it sums to 0.8": law(kind="table", table=[[0.3, 0.1], [0.2, 0.2]]),
    "has 3 numbers, but there are 2 clusters": law(weights=[0.3, 0.3, 0.4]),
    "needs transition": law(kind="markov", weights=[0.3, 0.7]),
    "probability must be 1 where no configuration": law(kind="same", probability=0.5, weights=[1, 0]),
    "it has more than 262144 entries": law(kind="table", table=np.zeros((64, 64, 65))),
    # spectra
    "weights that sum to 1, but they sum to 0.5": atoms(ATOM),
    "gives token 1 no variance": atoms({"weight": 1, "variances": [0.2, 0]}),
    "for all atoms or for none": atoms({**ATOM, "positions": [1, 2], "teacher": [1]}, ATOM),
    "tokens.spectrum.kind is missing": spectrum(exponent=1),
    "needs fraction": spectrum(kind="two-level", variances=[0.1, 0.2]),
    # penalties
    "needs regularizer.expression": penalty(kind="expression"),
    "regularizer.expression cannot be used": penalty(kind="expression", expression="-w**2"),
    "divides by zero": penalty(kind="expression", expression="w/0 + w**2"),
    'as "module:function", but it is "abc"': penalty(kind="prox", prox="abc"),
    "it must return an array": penalty(kind="prox", prox="faulty:text"),
    "fails on an array: it ends the program": penalty(kind="prox", prox="faulty:ends"),
    # scores
    'there is no score "hardmx": the known ones are softmax': fields({"teacher.score": "hardmx"}),
    "cannot be imported: it ends the program": fields({"student.score": "faulty_at_once:row"}),
    "returns more than 2 entries": fields({"student.score": "faulty:endless"}),
    "cannot stand in a formula": fields({"student.score": "lambda: z"}),
    "too intricate": fields({"student.score": "exp(" * 60 + "z" + ")" * 60}),
    "not a finite number": fields({"student.score": "exp(" * 8 + "z" + ")" * 8}),
    # losses
    "needs tokens.length = 1": fields({"loss.kind": "square"}),
    "student.rank = 1": fields({**ONE, "loss.kind": "hinge", "student.rank": 2}),
    'unknown function "squrt"': loss("squrt(h)"),
    "must be a finite number for all fields, but is not finite at h = 1": loss("1/(h - 1)"),
    "falls without bound, at least as the square of the fields": loss("-(h - k)**2"),
    "file.csv: the file cannot be read": csv("\xff"),
    "atom 1 of file.csv has 2 numbers, but the header has 3": csv("weight,variance_0,variance_1\n1,1,1\n1,1"),
    "atom 0 of file.csv has a wrong entry": csv("weight,variance_0,variance_1\n1,1,one"),
    "line 2 has more than 131072 characters": csv("weight\n1" + "1" * (1 << 17)),
    "more lines than the 65536 atoms": csv("\n" * (2 << 16) + "weight\n1"),
    'has the column "varience_0" where only weight': csv("weight,varience_0\n1,1"),
    "columns of variances in file.csv must be numbered from 0 on": csv("weight,variance_0,variance_2\n1,1,1"),
    "the header of file.csv must have variance_0": csv("weight\n1"),
    "teacher.prior_probabilities are in the file": fields({**VALUES, "teacher.prior_values": "file.csv"}),
    "exponent cannot be set, since": lambda: atoms(WHOLE)().with_fields({"tokens.spectrum.exponent": 2}),
    "change each other": fields({"tokens.law.weights[0]": 0.3, "tokens.law.weights[1]": 0.7}, WEIGHTED),
    'unknown key "token.sigma": did you mean "tokens"?': fields({"token.sigma": 1}),
    'unknown key "tokens.law.transiton"': mixed(**{"law.transiton": 1}),
    "tokens.law.weights[0] must be a probability": fields({"tokens.law.weights[0]": 1.01}, CERTAIN),
    "is 1, and its change leaves open": fields({"tokens.law.weights[0]": 0.99}, CERTAIN),
    "tokens.sigma[0] is no number of this problem": fields({"tokens.sigma[0]": 0.5}),
    "A problem must be a table": lambda: ap.Problem.from_dict([]),  # type: ignore[arg-type]
    "file.nc: This is not valid TOML": lambda: ap.load_problem("file.nc"),
    "not text in UTF-8": lambda: (Path("file.csv").write_text("\xff", "latin-1"), ap.load_problem("file.csv")),
    'a name must not end in "_stderr"': fields({"metrics.a_stderr": "h"}),
    "metrics has 65 entries": table(metrics={f"m{i}": "h" for i in range(65)}),
    'metrics has the name "class"': table(metrics={"class": "h"}),
    "at most 1e12": fields({"loss.parameters.a": 1.01e12}, loss("(h-a*k)**2", **{"loss.parameters": {"a": 1e12}})()),
    "integration.nodes does not go with integration.rule": fields({"integration.nodes": 12}),
    "be from 4 to": fields({"integration.nodes": 3}, fields({"integration.rule": "lines", "integration.nodes": 4})()),
    "metrics.a must be a formula of a sample's fields, but": fields({"metrics.a": "z"}),
    "same number of clusters": mixed(clusters=[[{}, {}], [{}]], law={"kind": "same", "probability": 1}),
    "give the probability of each location": law(kind="single-location", weights=[0.2, 0.3, 0.5]),
    "needs two clusters for every token": mixed(clusters=[{}], law={"kind": "single-location"}),
    "has 3 lists, but tokens.length is 2: give one for each token": law(weights=[[0.4, 0.6]] * 3),
    "must be a number from 0 to 1, but it is true": law(kind="table", table=[[True, 0.0], [0.0, 0.0]]),
    "must be a list of length 2, one entry for each cluster of token 1": law(kind="table", table=[[0.5, 0.5], [0]]),
    "must be a single list of probabilities": law(kind="same", probability=1, weights=[[0.4, 0.6]] * 2),
    'does not go with the law kind "independent"': law(kind="independent", probability=0.5),
    "lists in one another": law(kind="table", table=DEEP),
    "with positions in the atoms": fields({"positions.kind": "opposite"}, atoms({**WHOLE, "positions": [1, -1]})()),
    'positions.kind = "spectrum" needs positions': fields({"positions.kind": "spectrum"}),
    "does not go with teacher in the atoms": fields({**TAUGHT, "positions.teacher": [[0.1], [-0.1]]}),
    "but the teacher has 1 columns": atoms({**WHOLE, "teacher": [1, 2]}),
    "vanish or are not independent": atoms({**WHOLE, "teacher": [0]}),
    "atoms of tokens.spectrum, which give the entries": fields({**TAUGHT, "teacher.prior": "rademacher"}),
    "encodings and teacher can have together": mixed(mean_positions=[[0.8], [-0.8]], mean_teacher=[[-0.8]]),
    "but the student's weights have one column": penalty(strength=[0.1, 0.2]),
    "which has no attention: remove it": fields({**ONE, "loss.kind": "square", "teacher.causal": True}),
    'integration.rule = "split" is no more': fields({"integration.rule": "split"}),
    'loss.width does not go with loss.kind = "attention"': table(loss={"width": 2}),
    "positions.gram does not go with": table(positions={"kind": "opposite", "gram": [[1, 0], [0, 1]]}),
    "needs positions.gram": table(positions={"kind": "gram"}),
    "but it is 3: choose": table(tokens={"length": 3}, positions={"kind": "opposite"}),
    "positions.gram must be symmetric": fields({"positions.gram": [[1, 0.5], [0.4, 1]]}),
    "regularizer.ridge does not go with": penalty(ridge=1),
    "regularizer.strength does not go with": penalty(kind="expression", expression="w**2", strength=2),
    "regularizer.strength is a list": penalty(kind="lasso", strength=[0.1]),
    "atoms, but has 65537": lambda: ap.Problem.from_dict({"tokens": {"spectrum": (WHOLE,) * 65537}}),
    "tokens.spectrum.variance has 3 numbers": spectrum(kind="power-law", exponent=1, variance=[0.1, 0.2, 0.3]),
    "is no number of tokens.density": loss("h", **{"tokens.density": "k**2", "tokens.parameters": {"a": 1.0}}),
    "two or more different numbers": fields({**VALUES, "teacher.prior_values": [1, 1]}),
    "has 2 numbers, but teacher.prior_values has 3": fields({**VALUES, "teacher.prior_values": [1, 2, 3]}),
    "must sum to 1, but sum to 0.9": fields({**VALUES, "teacher.prior_probabilities": [0.5, 0.4]}),
    'tokens.mean_teacher does not go with tokens.kind = "gaussian"': table(tokens={"mean_teacher": [[0.1]]}),
    "tokens.sigma and tokens.spectrum exclude each other": table(tokens={"sigma": 1, "spectrum": [WHOLE]}),
    "tokens.sigma has 3 numbers": fields({"tokens.sigma": [0.1, 0.2, 0.3]}),
    'tokens.spectrum gives means, which do not go with tokens.kind = "gaussian"': atoms({**WHOLE, "means": [1, 1]}),
    "whose clusters have their own": table(tokens={"sigma": 1, "kind": "mixture", "clusters": TWO}),
    "tokens.mean_teacher must have 1 columns": mixed(mean_teacher=[[0.1, 0.2]]),
    "tokens.mean_positions has 3 rows": mixed(mean_positions=[[0.1]] * 3),
    "gives means and so does": mixed(spectrum=[{"weight": 1, "variances": [1] * 4, "means": [1] * 4}]),
    "tokens.clusters has 3 lists": mixed(clusters=[[{}]] * 3),
    "gives sigma where": table(tokens={"kind": "mixture", "clusters": [{"sigma": 1}], "spectrum": [WHOLE]}),
    "tokens.parameters are numbers of tokens.sampler": fields({"tokens.parameters": {"a": 1.0}}),
    "tokens.spectrum[0].variances has 3 numbers": atoms({"weight": 1, "variances": [1, 1, 1]}),
    "tokens.spectrum[0].positions has 3 numbers": atoms({**WHOLE, "positions": [1, 1, 1]}),
    "tokens.spectrum[0].means has 3 numbers": atoms({**WHOLE, "means": [1, 1, 1]}),
    "tokens.spectrum[1].teacher has 2 numbers": atoms({**ATOM, "teacher": [1]}, {**ATOM, "teacher": [1, 2]}),
    "has the name of an entry of Q": loss("(h - k)**2 + Q0_0", **{"loss.parameters": {"Q0_0": 1.0}}),
    "loss.trained.b is no parameter of the loss": trained("(h - k)**2", 1, "b**2", "a"),
    "does not depend on the student's fields": loss("k**2"),
    "has an infinite slope where": loss("sqrt(abs(h0_0 - h0_1)) + h0_0**2", **{"student.rank": 2}),
    "which jumps in a student's field": loss("(sign(h) - k)**2 + h**2"),
    "b = 0 leaves loss.expression without h": trained("(b*h - k)**2", 0, "b**2"),
    "is trained, but loss.expression does not depend on b": trained("(h - k)**2", 1, "b**2"),
    "loss.trained.b cannot be used": trained("(h - k - b)**2", 1, "squrt(b)"),
    "must be a finite number for every b": trained("(h - k - b)**2", 1, "1/b"),
    'regularizer.prox "absent:step" cannot be imported': penalty(kind="prox", prox="absent:step"),
    'module faulty has no function "sys"': penalty(kind="prox", prox="faulty:sys"),
    "loss.expression takes the number of a token's cluster": loss("(h - k - c)**2"),
}
FUNCTIONS: dict[str, Callable[[], object]] = {
    "alpha must be one positive number": of(ap.solve, -1),
    'branch must be one of semantic, positional, uninformed, mixed, all, not "sematic"': of(ap.solve, 1, "sematic"),
    "positions.kind": lambda: ap.solve(PAPER.with_fields({"positions.kind": "none"}), 1, "positional"),
    'method must be one of newton, anderson, damped, not "magic"': lambda: ap.SolverSettings(method="magic"),  # type: ignore[arg-type]
    "alpha has 1.0 twice": of(ap.sweep, [1.0, 1.0]),
    "alpha must hold at least one value": of(ap.sweep, []),
    "sweep each size alone": of(ap.sweep, 1, fields={"tokens.length": [2, 3]}),
    "share K from 1 to N of N shares": of(ap.sweep, 1, shard="5/2", output="out.nc"),
    "shard needs output": of(ap.sweep, 1, shard="1/2"),
    "scheduler must be the address of a Dask scheduler": of(ap.sweep, 1, scheduler="10.0.0.1:8786"),
    "give workers or scheduler, not both": of(ap.sweep, 1, scheduler="tcp://10.0.0.1:8786", workers=2),
    "there is no folder": of(ap.sweep, 1, output="none/out.nc"),
    "blocks must be at most 2, the number of lines": of(ap.plan_sweep, 1, blocks=7, folder="run"),
    "there is no plan in this folder": lambda: ap.run_block(".", 1),
    "field must be alpha": of(ap.follow, 1, "omega", (0.3, 0.4)),
    "between must be an increasing pair": of(ap.follow, between=(2, 1)),
    "only a field that is one real number": of(ap.sensitivity, 1, "student.rank"),
    'did you mean "test_error"': of(ap.tune, 1, metric="test_eror"),
    "between is missing": of(ap.tune, 1, "teacher.noise"),
    "outer must be a power of two": of(ap.one_rsb, 1, outer=48),
    "regularizer.kind must be ridge": lambda: ap.one_rsb(PAPER.with_fields({"regularizer.kind": "lasso"}), 1),
    "until must be at least": of(ap.sgd_flow, until=5e-324),
    "batch belongs to SGD": of(ap.stationary, batch=3),
    "angle must be in increasing order": of(ap.basins, angle=[50, 20]),
    "teacher.rank must be 1 or 2": lambda: ap.bayes_optimal(PAPER.with_fields({"teacher.rank": 3}), 1),
    'channel = "sign" is for one token': of(ap.bayes_optimal, 1, channel="sign"),
    "student.rank does not enter": of(ap.bayes_optimal, 1, fields={"student.rank": [1, 2]}),
    "alpha must be an increasing pair": of(ap.thresholds, (2, 1)),
    "seeds must be a whole number of at least 1": of(ap.simulate, 1, seeds=0),
    "100000000 runs are asked for": of(ap.simulate, 1, seeds=10**8),
    "gives no sample": of(ap.simulate, 0.001, dimension=30),
    "lower the dimension or alpha, or": of(ap.simulate, 1, dimension=10**9),
    "learning_rate belongs to": of(ap.simulate, 1, learning_rate=1),
    "limit must be": of(ap.derive, limit="end"),
    # what theories, rules and losses do not cover
    "start must be a dataset of attnphase.solve, Overlaps or a BranchPoint": of(ap.follow, start=1.5),
    "settings.max_maps has no part in this": lambda: ap.bayes_optimal(
        PAPER, 0.3, settings=ap.SolverSettings(max_nodes=64, max_maps=3)
    ),
    "load_problem reads one from a file": lambda: ap.solve("problem.toml", 2.0),  # pyright: ignore[reportArgumentType]
    "more than 4096 configurations": lambda: ap.Problem(tokens={"kind": "mixture", "length": 13, "clusters": [{}, {}]}),
    "does not say where it enters": loss("(h - k)**2", **{"teacher.noise": 0.1}),
    "label has h0_0 in it": lambda: ap.best_predictor(PAPER, "h[0, 0]", "linear"),
    "smooth tokens.density": lambda: model("square", {"tokens.density": "1 + sign(k)/2", "integration.rule": "lines"}),
    "does not go with optimizer gamp": lambda: ap.simulate(
        model("square", {"tokens.sampler": "k + k**3"}), 1.2, optimizer="gamp", dimension=50, seeds=1
    ),
    "has the name of a field or a function": loss("(h - k)**2", **{"loss.parameters": {"h0_0": 1.0}}),
    "loss.parameters.a has no effect": loss("(h - k)**2", **{"loss.parameters": {"a": 1.0}}),
    "has a kink or a jump": loss("(h - k - b)**2", **{"loss.parameters": {"b": 1.0}, "loss.trained": {"b": "abs(b)"}}),
    "1RSB does not cover trained parameters": lambda: ap.one_rsb(model("trained"), 2.0, y=[1.0]),
    "the dynamics does not cover losses of Q": lambda: ap.sgd_flow(loss("(h - k)**2 + Q")(), until=2.0),
    "takes Q, which does not go with regularizer.kind": loss("(h - k)**2 + Q", **{"regularizer.kind": "lasso"}),
    "commut": lambda: ap.Spectrum.from_matrices(
        [np.diag([1.0, 2.0]), np.array([[1.0, 0.5], [0.5, 1.0]])], np.zeros((2, 2)), np.ones((2, 1))
    ),
    '"lines" needs a label that jumps or bends on parallel planes': fields(
        {"integration.rule": "lines", "loss.kind": "expression", "loss.expression": "(h0_0 - sign(k0_0*k1_0))**2"}
    ),
    "positive semidefinite joint covariance": lambda: ap.solve(
        model("paper"), 1.6, start=ap.interface.Overlaps(*(np.full((2, 1, 1), v) for v in (0.1, 10.0, 0.0, 0.9)))
    ),
    "the grid has": lambda: ap.sweep(PAPER, range(10**9), workers=1),
    "Gauss-Hermite rule of order 128 in 4 dimensions": lambda: ap.sweep(
        PAPER, 1.3, fields={"integration.rule": ["sobol", "gauss-hermite"], "integration.nodes": 128}, workers=1
    ),
    "resume needs output": lambda: ap.sweep(PAPER, 1.3, resume=True),
    "the mixed branch needs student.rank of at least 2": lambda: ap.sweep(PAPER, 1.3, branch="mixed"),
    "labels do not depend on the teacher's weights": lambda: ap.bayes_optimal(ap.Problem.paper(omega=1.0), 0.5),
    "no finite number for some k": lambda: ap.bayes_optimal(model("square"), 0.5, channel="sqrt(k)"),
    "kink": lambda: ap.sgd_flow(model("kinks")),
    "max_seconds must be a positive number of seconds": lambda: ap.SolverSettings(max_seconds=-0.5),
    "integration.standard_error says how the problem is solved": of(ap.sensitivity, 1, "integration.standard_error"),
    "start has shape (50, 3), but must have (50, 1)": of(ap.simulate, 2, np.zeros((50, 3)), 50),
    "batch belongs to sgd, not to gd": of(ap.simulate, 2, optimizer="gd", batch=2),
    "the number of samples, here 29": of(ap.simulate, 0.29, dimension=100, optimizer="sgd", batch=30),
    "optimizer adam needs the ridge": lambda: ap.simulate(penalty(kind="lasso")(), 2, optimizer="adam"),
    "write SolverSettings(tolerance=1e-6)": of(ap.sweep, 1, settings={"tolerance": 1e-6}),
    "refine needs three or more values": of(ap.sweep, [0.5, 1], refine=True),
    "give it as the argument alpha": of(ap.sweep, 1, fields={"alpha": [1.0]}),
    "the header of file.csv must be value,probability": csv(
        "value,weight\n1,1", "teacher.prior_values", **{"teacher.prior": "atoms"}
    ),
    '"tokens" is a section: set one of its keys': fields({"tokens": 1}),
    "tokens.law.weights[0] has no default": fields({"tokens.law.weights[0]": None}, WEIGHTED),
    "attnphase.load_problem reads a file": toml("problem.toml"),
    "metrics must be a table, but it is None": lambda: ap.Problem(metrics=None),  # type: ignore[arg-type]
    "has the name of loss.parameters.a": loss(
        "(h - a*k)**2",
        **{"tokens.density": "1 + a - a*k**2", "tokens.parameters": {"a": 0}, "loss.parameters": {"a": 1}},
    ),
    "it is empty": loss(" "),
    "it is longer than 2000 characters": fields({"student.score": "z" + "+z" * 1000}),
    "'h +' is not a formula": loss("h +"),
    "is not a formula.": loss("h\0"),
    "holds a number too near to zero": loss("h**2 + 1e-400*h"),
    "let it be the value, without a name": loss("a = h"),
    'it defines "a" twice': loss("a = h\na = k\na**2"),
    'it defines "h", which is the name of a field': loss("h = k\nh**2"),
    "levels deep": loss("-" * 500 + "h"),
    "is not a finite real number": loss("sqrt(-1)*h"),
    'it uses the unknown name "z"': loss("z**2 + h"),
    "'h // k' cannot stand in a formula": loss("h // k"),
    'it gives "exp" 2 arguments': loss("exp(h, k)"),
    'it gives "softmax" 2 arguments': loss("softmax(h, k)"),
    "has the keyword along, which sum does not take": loss("sum(h, along=0)"),
    "must be eye(L), or of a whole number": loss("sum(eye(40))*h"),
    "where a whole number such as 0 must stand": loss("sum(h, axis=0.5)"),
    "has an index that is not of whole numbers": loss("h[0.5]"),
    "must be a list of numbers, or of lists of as many": loss("sum([1, [2, 3]])*h"),
    "which do not go together": loss("sum([[1, 2], [3, 4]] + [1, 2, 3])*h"),
    "multiplies": loss("sum(h @ [1, 2, 3])"),
    "has the axis 3": loss("sum([h, k], axis=3)"),
    "but tril takes a matrix": loss("sum(tril([1, 2, 3]))*h"),
    "has an index, but": loss("k0_0[0]*h"),
    "takes one number, but softmax takes an array": loss("softmax(1)*h"),
    "takes an array without entries": loss("sum(softmax(h[5:]))"),
    "which is none of its arguments": loss(lambda h, k: sympy.Symbol("x") * h[0, 0]),
    "add it up by .sum()": loss(lambda h, k: h @ np.ones((1, 2))),
    "it returns 'text', but must return an expression": loss(lambda h, k: "text"),
    "it returns h0_0 < 0, but": loss(lambda h, k: h[0, 0] < 0),
    "but must return finite real numbers": loss(lambda h, k: sympy.oo * h[0, 0]),
    "generated code does not know gamma": loss(lambda h, k: sympy.gamma(h[0, 0])),
    "Piecewise has no derivative": loss(lambda h, k: sympy.Piecewise((h[0, 0], h[0, 0] > 0), (0, True))),
    "it takes Heaviside": loss(lambda h, k: sympy.Heaviside(h[0, 0])),
    'its argument "x" is none of': loss(lambda h, x: h[0, 0]),
    "but must name its arguments": loss(lambda *h: 0),
    "must be a number, but its default is 'a'": loss(lambda h, k, a="a": h[0, 0]),
    'it has no argument "b", but': loss(lambda h, k: h[0, 0], **{"loss.parameters": {"b": 1.0}}),
    "must have a few values that are told by signs": lambda: ap.bayes_optimal(
        loss("(h - c*k)**2", **{"tokens.kind": "mixture", "tokens.clusters": [{}, {}]})(), 0.5
    ),
    "covariances[0] is empty": matrices([np.zeros((0, 0))] * 2),
    "fields must name one field, and omega": of(ap.thresholds, fields={"tokens.sigma": [0.5]}, omega=[0.3]),
    "thresholds are searched along alpha": of(ap.thresholds, fields={"alpha": [1.0]}),
    "shard goes neither with refine nor with force": of(ap.sweep, 1, shard="1/2", output="out.nc", force=True),
    "teacher.omega is given twice: as omega": of(ap.sweep, 1, omega=[0.3], fields={"teacher.omega": [0.3]}),
    '"all" names every branch': of(ap.sweep, 1, branch=["all", "semantic"]),
    "give every formula a name of its own in metrics": of(ap.sweep, 1, fields={"metrics.a": ["h"]}),
    "tokens.sigma cannot be swept over": of(ap.sweep, 1, fields={"tokens.sigma": [[0.1, 0.2]]}),
    "tokens.kind cannot be swept": lambda: ap.sweep(MIXTURE, 1, fields={"tokens.kind": ["mixture", "gaussian"]}),
    "none: there is no such folder; name that of a plan": lambda: ap.run_block("none", 1),
    "start has noise twice": of(ap.sgd_flow, "noise=0.3,noise=0.2"),
    "start must have numbers, as noise=0.6": of(ap.sgd_flow, "noise=big"),
    "start.q has shape (3, 1, 1), but": of(
        ap.solve,
        1,
        start=ap.interface.Overlaps(np.ones((3, 1, 1)), np.ones((3, 1, 1)), np.zeros((3, 1)), np.zeros((3, 1, 1))),
    ),
    'kind = "positional" needs Gaussian tokens': lambda: ap.best_predictor(MIXTURE, "k[0, 0]", "positional"),
    "functions.softmax is causal, but its array": lambda: symbolic.softmax(np.zeros((2, 3)), causal=True),
    "takes an array with one or two axes": lambda: symbolic.softmax(np.zeros((2, 2, 2))),
    "functions.max takes no array without entries": lambda: symbolic.max(np.zeros(0)),
    "takes numbers, symbols and arrays of these": lambda: symbolic.exp("h"),  # type: ignore[arg-type]
    "a score's name must be a Python name": lambda: ap.register_score("a b", lambda z: z),
    'module faulty has no callable "nothing"': fields({"student.score": "faulty:nothing"}),
    "holds x, which is not a logit": score(lambda z: [sympy.Symbol("x")] * len(z)),
    "has no known derivative": score(lambda z: [sympy.Function("f")(z[0])] * len(z)),
    'the score "own" fails on': score(lambda z: 1 / 0),
    'entry 0 of the score "own" is not an expression': score(lambda z: ["x ("] * len(z)),
    'of the score "own" cannot be used': score(lambda z: [sympy.gamma(x) for x in z]),
    "is a shipped score": lambda: ap.register_score("softmax", list),
    "channel must be sign, absolute, linear or a formula of": optimal("squrt(k)"),
    "Or say by channel what is observed": lambda: ap.bayes_optimal(loss("(h - 1)**2")(), 0.5),
    "one entry of the noise": lambda: ap.bayes_optimal(loss("(h - k*noise)**2", **{"teacher.noise": 0.1})(), 0.5),
    "does not depend on k, so that its label": optimal("1"),
    "a formula in y, must be one number": optimal("[sigmoid(y*k[0, 0]), 0.5]"),
    "a formula in y, needs teacher.noise = 0": optimal("sigmoid(y*k)", {"teacher.noise": 0.1}),
    "who knows the model has nothing to learn": lambda: ap.bayes_optimal(atoms({**WHOLE, "teacher": [1]})(), 0.5),
    "teacher.rank must be at most 3": optimal(None, {"teacher.rank": 4}, "paper"),
    "tokens.length must be at most 3 for labels": optimal("k[0, 0]", {"tokens.length": 4}, "paper"),
    "rank = 1, not 2": lambda: ap.bayes_optimal(loss("(h0_0-k0_0)**2", **{"teacher.rank": 2})(), 0.5, channel="sign"),
    "has value matrices": optimal(None, {"loss.kind": "values", "loss.width": 1}, "paper"),
    "thresholds are of one problem": of(ap.bayes_optimal, 1, fields={"tokens.sigma": [0.4, 0.5]}, thresholds=True),
    "which 1RSB does not cover, since it contains only the sign": lambda: ap.one_rsb(model("logistic"), 1),
    "inner must be at least 16": lambda: ap.one_rsb(model("rank 2"), 1, inner=8),
    "outer times inner must be at most 262144": of(ap.one_rsb, 1, outer=512, inner=1024),
    "the dynamics is that of weight decay": lambda: ap.sgd_flow(penalty(kind="lasso")(), until=2),
    "is where training begins": lambda: ap.follow(model("trained"), 1, "loss.parameters.b", (0, 1)),
    "tokens.sigma has no value in this problem": lambda: ap.follow(MIXTURE, 1, "tokens.sigma", (0.3, 0.4)),
    "give the range in which teacher.noise is followed": of(ap.follow, 1, "teacher.noise"),
    "between must hold positive sample complexities": of(ap.follow, between=(0, 1)),
    "alpha is missing: give the sample complexity": of(ap.follow, None, "teacher.omega", (0.3, 0.4)),
    "teacher.omega cannot be all of": of(ap.tune, 1, "teacher.omega"),
    "covariances must hold at least one matrix": matrices([]),
    "means must have the structure of covariances": matrices([np.eye(2)] * 2, means=[np.ones(2)]),
    "covariances must be a list with an entry for every token": matrices("eye"),
    "has shape (3, 1), but must have": matrices([np.eye(2)] * 2, [[1], [1], [1]]),
    "holds a number that is not finite": matrices([np.full((2, 2), np.inf)] * 2),
    "choose other units": matrices([np.eye(2) * 1e200] * 2),
    "must be symmetric, but differs from its transpose by 0.5": matrices([np.array([[1, 0.5], [0, 1]])] * 2),
    "must be positive semidefinite, but has the eigenvalue -1": matrices([np.diag([1, -1])] * 2),
    "dimension must be at least 3 here": of(ap.simulate, 2, dimension=2),
    "start is an array, which has one dimension": of(ap.simulate, 2, np.zeros((50, 1)), [40, 50]),
    "test_samples must be 0, or at least 2": of(ap.simulate, 2, test_samples=1),
    "start has an entry that is not a finite number": of(ap.simulate, 2, np.full((50, 1), np.nan), 50),
    "steps does not go with sgd": of(ap.simulate, 2, optimizer="sgd", steps=3),
    "channel belongs to bayes-gamp, not to lbfgs": of(ap.simulate, 2, channel="sign"),
    "has a kink, which the experiments' optimisers cannot": lambda: ap.simulate(model("kinks"), 2),
}


COMMANDS = {
    "solve --alpha 1 -o x.pdf": "let the name end in .nc, not in .pdf",
    "solve none.toml --alpha 1": "there is no such file",
    "solve --alpha 1 --set teacher.omega=2": "teacher.omega must be",
    "sweep -o out.nc": "Missing option '--alpha'",
    "sweep --alpha 1:2:0 -o out.nc": "needs finite START and STOP, and a COUNT from 1",
    "sweep --block 1 . --alpha 2": "--alpha belongs to the plan",
    "sweep --plan 2 --alpha 1,2 --refine -o out": "--refine belongs to a sweep in one go",
    "simulate --alpha 1 -o one.nc --checkpoint one.nc": "names a file of the result",
    "experiment fig9 -o out": "experiment must be one of",
    "compare none.nc file.nc": "there is no such file",
    "explore file.nc -o file.nc": "--output must end in .html",
    "sgd-flow --start positional": "start must be semantic, or sizes",
    "one-rsb --alpha 1 --y 100,-1": "y must be",
    "bayes-optimal --alpha 1 --max-nodes 20": "max_nodes must be",
    "thresholds --vary alpha=1,2": "alpha is not a field",
    "derive --concrete --format python": "--concrete is for pages",
    "figure fig2 -o x.pgf": "no figure format",
    "phase-diagram --output out --nodes 100": "--nodes must be a power of two",
    "histogram report .": "there are no",
    "solve --alpha 1 -o file.nc": "the file exists; use --force",
    "sweep --alpha 1,2 -o file.nc": "the file exists; use --force",
    "sgd-flow -o file.nc": "the file exists; use --force",
    "init -o file.nc": "the file exists; use --force",
    "figure fig2 -o file.nc": "the file exists; use --force",
    "simulate --alpha 1 --checkpoint none/x": "there is no folder",
    "simulate --alpha 1 --checkpoint circle": "links lead in a circle",
    "simulate --alpha 1 --checkpoint file.nc": "this is not a checkpoint of training runs, or it is damaged",
    "solve --alpha 1 --set tokens.sigma": "A setting must read field=value",
    "solve --alpha 1 --set tokens.sigma=0.5.3": "tokens.sigma cannot be read from",
    "histogram train -o out --model-dimension 7": "model_dimension must be even",
    "histogram train -o out --sequences 10 --training-share 0.01": "leaves none to train on",
    "figure fig2 --at omega=1 --at omega=2": "--at names a field twice",
    "figure fig2 --at omega=1": "--at selects from a dataset",
    "figure fig2 --data file.nc --set tokens.sigma=1": "--set changes what is computed",
    "figure fig2 --data file.nc --data file.nc": "fig2 is drawn from one dataset",
    "figure fig2 --data file.nc --quantity q": "--quantity",
    "figure fig2 --data file.nc -o file.png --with-data": "over the data that is drawn",
    "sweep --alpha 1 -o out --vary tokens.sigma": "--vary must read FIELD=VALUES",
    "sweep --alpha 1 -o out --vary tokens.sigma=1 --vary tokens.sigma=2": "tokens.sigma is given twice by --vary",
    "sweep --alpha 1 -o out --vary tokens.sigma=": "tokens.sigma has no values",
    "sweep --alpha 1 -o out --vary tokens.sigma=[1,2]": "cannot be swept over lists or tables",
    "sweep --alpha 1 -o out --vary tokens.sigma=1:2:0": "tokens.sigma cannot be swept: ",
    "sweep --alpha 1 -o out --vary tokens.sigma=a:2:3": "is no START:STOP:COUNT",
    "sweep --alpha 1 -o out --vary student.score='z": "has a quotation mark that is not closed",
    "sweep --alpha 1,2 -o file.nc --resume": "Use --force (force=True) to replace it",
    "sweep --plan 2 --merge .": "exclude each other",
    "derive --concrete --limit sgd_flow": "--concrete does not go with --limit sgd_flow",
    "basins --runs file.nc": "name a --figure",
    "basins --set teacher.omega=0.5": "give its values with --omega",
    "basins --figure a.png -o a.png": "--figure and --output name one file",
    "thresholds --vary tokens.sigma=1 --vary teacher.noise=0.1": "--vary names 2 fields",
    "thresholds --omega 0.3 --vary tokens.sigma=1": "--omega and --vary cannot both be given",
    "histogram report none": "none: there is no such folder",
}
NO_FILES = {
    "pipe": "this is a pipe, not a regular file",
    "socket": "not a regular file",
    "/dev/zero": "not a regular file",
    "sparse": "the file has 8192.0 GiB, but",
}
READERS: dict[str, Callable[[str], object]] = {
    "a problem": ap.load_problem,
    "a spectrum": lambda name: PAPER.with_fields({"tokens.spectrum": name}),
    "a prior": lambda name: PAPER.with_fields({"teacher.prior": "atoms", "teacher.prior_values": name}),
    "a dataset": ap.load_dataset,
    "a checkpoint": lambda name: ap.simulate(PAPER, 1, dimension=20, checkpoint=name),
}
FAULTY = """
import sys

def ends(v, step):
    sys.exit(0)

def text(v, step):
    return "text"

def endless(z):
    while True:
        yield z[0]
"""


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """A folder with modules of the user's own; nothing is computed here."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("faulty.py").write_text(FAULTY)
    Path("faulty_at_once.py").write_text("raise SystemExit(0)\n")
    Path("file.nc").write_text("mine")
    Path("file.csv").touch()
    os.mkfifo("pipe")
    Path("circle").symlink_to("circle")
    monkeypatch.setattr("attnphase.kernels.compiler.load_kernels", lambda *_: pytest.fail("work was begun"))


def sentence(call: Callable[[], object]) -> str:
    with pytest.raises(AttnphaseError) as caught:
        call()
    told = str(caught.value)
    assert "\n" not in told
    assert told[-1] in ".?"
    assert len(told) < 400
    return told


@pytest.mark.parametrize("words", [*PROBLEMS, *FUNCTIONS])
def test_a_wrong_argument_ends_in_a_sentence_with(words):
    before = {*Path().iterdir()}
    told = sentence((PROBLEMS | FUNCTIONS)[words])
    assert words in told
    assert {path for path in Path().iterdir() if path.name != "__pycache__"} == before


@pytest.mark.parametrize("line", COMMANDS)
def test_a_refused_command_ends_with_2_and_one_line(line):
    before = {*Path().iterdir()}
    result = run(*line.split(), code=2)
    assert result.stdout == ""
    assert result.stderr.startswith("attnphase: error: ")
    assert result.stderr.count("\n") == 1
    assert COMMANDS[line] in result.stderr
    assert {*Path().iterdir()} == before


@pytest.mark.parametrize(
    ("read", "kind"), [*((r, "pipe") for r in READERS), *(("a dataset", k) for k in NO_FILES if k != "pipe")]
)
def test_what_is_no_regular_file_is_not_waited_for(read, kind):
    socket.socket(socket.AF_UNIX).bind("socket")
    with Path("sparse").open("wb") as file:
        file.truncate(8 << 40)
    told = sentence(lambda: READERS[read](kind))
    assert f"{kind}: " in told
    assert NO_FILES[kind] in told or "not a regular file" in told


def functions() -> dict[str, Callable[..., object]]:
    """All that is public, by name."""
    homes = {"": ap, "figures.": figures, "reference.": reference}
    names = [(prefix, home, name) for prefix, home in homes.items() for name in home.__all__]
    return {f"{prefix}{name}": getattr(home, name) for prefix, home, name in names if callable(getattr(home, name))}


GOOD = {"problem": PAPER, "alpha": 1.4, "start": None, "row": lambda z: z, "name": "own", "path": "new.nc"}
GOOD |= {"blocks": 1, "block": 1, "folder": "new", "field": "tokens.sigma", "label": "k[0, 0]", "kind": "linear"}
GOOD |= {name: getattr(ap.Spectrum.of(PAPER), name) for name in inspect.signature(ap.Spectrum).parameters}
CALLED = {"teacher_rank": "teacher.rank", "ds": "dataset"}
CASES = [
    (name, parameter)
    for name, function in functions().items()
    for parameter, one in inspect.signature(function).parameters.items()
    if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
]


@pytest.mark.parametrize(("name", "parameter"), CASES, ids=[f"{name}({parameter})" for name, parameter in CASES])
def test_an_object_is_no_argument(name, parameter):
    """Each argument of each public function is looked at before work begins."""
    function = functions()[name]
    needed = [other for other, one in inspect.signature(function).parameters.items() if one.default is one.empty]
    told = sentence(lambda: function(**{other: GOOD.get(other, object()) for other in needed} | {parameter: object()}))
    wrong = {parameter, *needed} - {*GOOD} | {parameter}
    assert any(word in told or (word in CALLED and CALLED[word] in told) for word in wrong), told
