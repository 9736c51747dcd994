"""Data names no code that is imported and no file that is opened: only a problem that the user gives may."""

import dataclasses
import hashlib
import io
import pickle
import sys
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import attnphase as ap
from attnphase.cli.commands import main
from attnphase.data.build import from_points, from_runs, from_thresholds
from attnphase.data.files import load_dataset, save_dataset
from attnphase.data.reading import problem_of
from attnphase.data.validate import validate_dataset
from attnphase.data.variables import EXPERIMENT_VARIABLES, POINT_VARIABLES, RunStatus
from attnphase.errors import CompareError, DatasetError, ProblemError, SweepError
from attnphase.fixed_points.point import BranchPoint
from attnphase.kernels.key import ModelKey
from attnphase.kernels.reference import reference_backend
from attnphase.problem.problem import DataProblem, Problem
from attnphase.rows.operator import load_prox
from attnphase.solvers.iteration import Status
from attnphase.sweeps.line import Line
from derivations.models.scores import SCORES

FEW = {"integration.rule": "sobol", "integration.nodes": 64}
PAPER = Problem.paper(omega=0.3).with_fields(FEW)
ALPHAS, OMEGAS, SIZES = [0.7, 1.1, 1.6], [0.2, 0.3], [30, 60]
MODULE = """
from pathlib import Path

Path(__file__).with_name("trace").touch()


def score(logits):
    return [z / 2 for z in logits]


def prox(v, step):
    return v / (1 + 0.3 * step)
"""
NAMING = {
    "student": {"student.score": "planted:score"},
    "teacher": {"teacher.score": "planted:score"},
    "prox": {"regularizer.kind": "prox", "regularizer.prox": "planted:prox"},
}
OF_MODULE = {name: DataProblem.from_dict(PAPER.to_dict()).with_fields(changes) for name, changes in NAMING.items()}


@pytest.fixture
def planted(tmp_path, monkeypatch):
    """A module in the working folder that leaves a trace when it is imported; returns whether it did."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "planted.py").write_text(MODULE)
    load_prox.cache_clear()  # what was imported for another test
    yield lambda: (tmp_path / "trace").exists() or "planted" in sys.modules
    sys.modules.pop("planted", None)


def a_point(problem, alpha, branch):
    """A point with believable numbers."""
    nothing: Any = None  # datasets do not hold restart information
    sizes = {"token": 2, "row": 1, "col": 1, "teacher": 1, "eigenvalue": 3}
    slope = {"semantic": 0.5, "positional": 0.4}[branch]
    values: dict[str, Any] = {
        v.name: np.full([sizes[dim] for dim in v.dims], slope / (1 + alpha)) for v in POINT_VARIABLES if v.dims
    }
    scalars = [v.name for v in POINT_VARIABLES if not v.dims and v.has_stderr]
    values |= dict.fromkeys(scalars, slope / (1 + alpha)) | {"unsolved_nodes": 0, "free_energy_gap": 1e-11}
    errors = {name: 0.01 * value for name, value in values.items()}
    return BranchPoint(problem, alpha, branch, values, errors, Status.converged, 1e-9, 17, "sobol", 1024, nothing)


def theory(problem):
    points = [
        a_point(problem.with_fields({"teacher.omega": omega}), alpha, branch)
        for branch in ("semantic", "positional")
        for omega in OMEGAS
        for alpha in ALPHAS
    ]
    swept = {"branch": ["semantic", "positional"], "teacher.omega": OMEGAS, "alpha": ALPHAS}
    return from_points(points, swept, problem=problem)


def runs(problem):
    swept = {"start": ["semantic"], "dimension": SIZES, "alpha": [1.1], "seed": range(3)}
    sizes = {"token": 2, "row": 1, "col": 1, "teacher": 1, "eigenvalue": 3}
    columns = {}
    for variable in EXPERIMENT_VARIABLES:
        shape = (1, len(SIZES), 1, 3, *(sizes[dim] for dim in variable.dims))
        columns[variable.name] = np.full(shape, 0.24).astype(variable.dtype)
        if variable.has_stderr:
            columns[variable.stderr] = np.full(shape, 0.01)
    columns["status"] = np.full((1, len(SIZES), 1, 3), RunStatus.converged, dtype="int8")
    return from_runs(problem, swept, columns, rule="lbfgs", seed=0)


def thresholds(problem):
    found = {"alpha_c": [1.2, 1.3], "alpha_l": [1.4, 1.5]}
    return from_thresholds(problem, OMEGAS, found, found, "sobol")


def rewritten(ds, text, digest=None):
    """A dataset with another text for a problem, whose hash fits unless another is given."""
    digest = digest or hashlib.sha256(text.encode()).hexdigest()[:16]
    return ds.assign_attrs(problem=text, problem_hash=digest)


def run(*arguments):
    return main.main([str(argument) for argument in arguments], standalone_mode=False)


# ------------------------------------------------------------------------------------------------------------- readers


@pytest.mark.parametrize("problem", OF_MODULE.values(), ids=OF_MODULE)
@pytest.mark.parametrize("fits", [True, False])
def test_no_reader_imports_what_a_dataset_names(planted, tmp_path, problem, fits):
    made = {kind.__name__: kind(problem) for kind in (theory, runs, thresholds)}
    if not fits:
        made = {name: rewritten(ds, ds.attrs["problem"], "0123456789abcdef") for name, ds in made.items()}
    for name, ds in made.items():
        ds.to_netcdf(tmp_path / f"{name}.nc")
        for read in (partial(validate_dataset, ds), partial(load_dataset, tmp_path / f"{name}.nc")):
            if fits:
                assert read().attrs["problem"] == problem.to_toml()
            else:
                with pytest.raises(DatasetError, match='"problem_hash" does not belong to "problem"'):
                    read()
        if fits:
            save_dataset(ds, tmp_path / f"{name}.nc", force=True)
    for options in ((), ("--figure", tmp_path / "c.png")):
        with pytest.raises((CompareError, DatasetError)) as caught:
            run("compare", tmp_path / "theory.nc", tmp_path / "runs.nc", *options)
        field, name = next(iter(problem.imports.items()))
        sentence = f'{field} is "{name}", a function of a module' if fits else "one of them was changed"
        assert sentence in str(caught.value)
        assert ("--problem problem.toml" in str(caught.value)) == fits
    assert not planted()


def test_a_figure_imports_nothing(planted, tmp_path):
    save_dataset(theory(OF_MODULE["student"]), tmp_path / "a.nc")
    for figure in ("fig2", "fig3"):
        assert run("figure", figure, "--data", tmp_path / "a.nc", "-o", tmp_path / f"{figure}.png", "--quiet") == 0
    assert not planted()


@pytest.mark.parametrize("problem", OF_MODULE.values(), ids=OF_MODULE)
def test_a_sweep_imports_nothing_that_finished_lines_name(planted, tmp_path, monkeypatch, problem):
    """Lines of another's problem, put where the sweep keeps its own."""

    def solve(line, on_point=None):
        if line.branch == "positional":
            raise ArithmeticError("stopped")
        points = [a_point(problem, alpha, line.branch) for alpha in line.alphas]
        return from_points(points, {"alpha": line.alphas}, problem=problem)

    def again(output, **options):
        return ap.sweep(PAPER, ALPHAS, branch=("semantic", "positional"), workers=1, output=output, **options)

    monkeypatch.setattr(Line, "solve", solve)
    with pytest.raises(SweepError, match="stopped"):
        again(tmp_path / "a.nc")
    assert [*tmp_path.glob("a.nc.parts/*.nc")]
    with pytest.raises(SweepError, match="stopped"):
        again(tmp_path / "a.nc", resume=True)
    assert not planted()


def test_a_users_own_sweep_is_resumed(planted, tmp_path, monkeypatch):
    problem = PAPER.with_fields(NAMING["prox"])
    assert planted()  # the user may name a module
    solved = []

    def solve(line, on_point=None):
        solved.append(line.branch)
        if len(solved) == 2:
            raise ArithmeticError("stopped")
        return from_points([a_point(problem, a, line.branch) for a in line.alphas], {"alpha": line.alphas})

    monkeypatch.setattr(Line, "solve", solve)
    arguments = {"branch": ("semantic", "positional"), "workers": 1, "output": tmp_path / "a.nc"}
    with pytest.raises(SweepError, match="stopped"):
        ap.sweep(problem, ALPHAS, **arguments)
    grid = ap.sweep(problem, ALPHAS, resume=True, **arguments)
    assert solved == ["semantic", "positional", "positional"]
    assert load_dataset(tmp_path / "a.nc").identical(grid)


def test_the_hash_is_compared_before_the_problem_is_read(planted):
    """Its text may be anything."""
    for text in ("this is no TOML", "x = " + "[" * 10**5):
        with pytest.raises(DatasetError, match="problem_hash"):
            problem_of(rewritten(theory(PAPER), text, "0123456789abcdef"))
        with pytest.raises(DatasetError, match='"problem" is not a problem'):
            problem_of(rewritten(theory(PAPER), text))


@pytest.mark.parametrize("place", ["tokens]\nspectrum = ", "tokens]\nlength = 2\nspectrum = "])
def test_data_opens_no_file(tmp_path, place):
    """Neither a spectrum that is there, nor one that would be waited for."""
    (tmp_path / "atoms.csv").write_text("weight,variance_0,variance_1\n1,0.2,0.3\n")
    for name in (tmp_path / "atoms.csv", "/dev/zero"):
        text = f'[{place}"{name}"\n'
        if name != "/dev/zero":
            assert Problem.from_toml(text).spectrum_atoms()[1].tolist() == [[0.2, 0.3]]
        with pytest.raises(DatasetError, match=r"tokens\.spectrum names the file .* which data must not"):
            problem_of(rewritten(theory(PAPER), text))
        with pytest.raises(ProblemError, match=r"tokens\.spectrum names the file"):
            problem_of(theory(PAPER)).with_fields({"tokens.spectrum": str(name)})


def test_a_checkpoint_runs_nothing(planted, tmp_path):
    pytest.importorskip("torch", reason="experiments need PyTorch")
    from attnphase.errors import ExperimentError
    from attnphase.experiments import checkpoint
    from attnphase.files.checkpoints import RUNS

    class Import:
        def __reduce__(self):
            return __import__, ("planted",)

    def torch_image(content):
        import torch

        image = io.BytesIO()
        torch.save(content, image)
        return image.getvalue()

    task = {"task": "{}", "plan": {}, "finished": {}, "running": None}
    path = tmp_path / "a.checkpoint"
    contents = [{**task, "plan": Import()}, {**task, "task": "no JSON"}, {**task, "finished": 3}, {"task": "{}"}, 5]
    for image in [*map(torch_image, contents), pickle.dumps({**task, "plan": Import()}, protocol=2)]:
        RUNS.write(path, image)
        # and no advice of PyTorch's to run what is in it
        with pytest.raises(ExperimentError, match=r"is not a checkpoint of training runs, or it is damaged; remove it"):
            checkpoint.Checkpoint.read(path)
    RUNS.write(path, torch_image(task))
    assert checkpoint.Checkpoint.read(path).finished == {}
    assert not planted()


def test_labels_from_data_are_no_tex(monkeypatch):
    """TeX reads and writes files; the user's own settings may ask for it."""
    from matplotlib import rcParams

    from attnphase.figures import fig2

    monkeypatch.setitem(rcParams, "text.usetex", True)
    figure = fig2(theory(PAPER))
    texts = [text for ax in figure.axes for text in (ax.xaxis.label, ax.yaxis.label, ax.title)]
    assert texts
    assert not any(text.get_usetex() for text in texts)


# ---------------------------------------------------------------------------------------------------- problems of data


@pytest.mark.parametrize("problem", OF_MODULE.values(), ids=OF_MODULE)
def test_a_problem_of_data_is_not_solved_with_functions_of_modules(planted, problem):
    field = next(iter(problem.imports))
    copies = {
        "as read": problem,
        "changed": problem.with_fields({"teacher.omega": 0.21}),
        "replaced": dataclasses.replace(problem, tokens=problem.tokens),
        "sent to a worker": pickle.loads(pickle.dumps(problem)),
    }
    for one in copies.values():
        for use in (ModelKey.of, lambda p: p.rows, lambda p: ap.solve(p, 1.0), lambda p: reference_backend(p, "numpy")):
            with pytest.raises(ProblemError, match=r'is "planted:\w+", a function of a module') as caught:
                use(one)
            assert caught.value.field == field
            assert "load_problem or Problem.from_toml" in str(caught.value)
    assert not planted()
    trusted = Problem.from_toml(problem.to_toml())
    assert planted()
    trusted.require_functions()
    assert trusted == problem
    assert problem == trusted
    assert hash(trusted) == hash(problem)
    assert problem.with_fields({"teacher.omega": 0.21}) != trusted


def test_a_change_to_a_problem_of_data_imports_nothing(planted):
    problem = problem_of(theory(PAPER)).with_fields(NAMING["student"])
    assert problem.imports == {"student.score": "planted:score"}
    assert not planted()


def test_formulas_of_data_are_checked_and_used():
    formula = {"student.score": "z/sqrt(1 + sum(z**2))", "teacher.score": "z"}
    problem = problem_of(theory(PAPER.with_fields(formula)))
    assert "z0" in ModelKey.of(problem).functions
    text = problem.to_toml().replace("sqrt", "squrt")
    with pytest.raises(DatasetError, match=r'student\.score cannot be used.*unknown function "squrt"'):
        problem_of(rewritten(theory(PAPER), text))
    penalty = {"regularizer.kind": "expression", "regularizer.expression": "0.02*abs(w)"}
    assert problem_of(theory(PAPER.with_fields(penalty))).rows.value(np.array([-3.0]))[0] == pytest.approx(0.06)
    with pytest.raises(ProblemError, match=r"regularizer\.expression cannot be used"):
        problem_of(theory(PAPER)).with_fields({**penalty, "regularizer.expression": "-w**2"})


@pytest.mark.usefixtures("own_scores")
def test_datasets_of_registered_scores_are_read_without_them(tmp_path):
    ap.register_score("halved", lambda logits: [z / 2 for z in logits])
    problem = PAPER.with_fields({"student.score": "halved"})
    save_dataset(theory(problem), tmp_path / "a.nc")
    assert ModelKey.of(problem_of(load_dataset(tmp_path / "a.nc"))) == ModelKey.of(problem)
    del SCORES["halved"]
    recorded = problem_of(load_dataset(tmp_path / "a.nc"))
    with pytest.raises(ProblemError, match='there is no score "halved"'):
        ModelKey.of(recorded)


# ---------------------------------------------------------------------------------------------------------- comparison


@pytest.fixture
def reached(monkeypatch):
    """The problems whose kernels a comparison asks for, where it stops."""
    asked = []

    def kernels_for(problem):
        asked.append(problem)
        raise CompareError("reached")

    monkeypatch.setattr("attnphase.state_evolution.system.kernels_for", kernels_for)
    return asked


@pytest.mark.parametrize("name", NAMING)
def test_a_comparison_takes_the_users_own_problem(planted, tmp_path, reached, name):
    recorded = OF_MODULE[name]
    for kind in (theory, runs):
        save_dataset(kind(recorded), tmp_path / f"{kind.__name__}.nc")
    (tmp_path / "mine.toml").write_text(recorded.to_toml())
    (tmp_path / "other.toml").write_text(recorded.with_fields({"tokens.sigma": 0.47}).to_toml())
    files = tmp_path / "theory.nc", tmp_path / "runs.nc"
    assert not planted()
    with pytest.raises(CompareError, match="reached"):
        run("compare", *files, "--problem", tmp_path / "mine.toml")
    assert planted()
    with pytest.raises(CompareError, match=r"tokens\.sigma is 0\.47 in it and 0\.5 in the experiment"):
        run("compare", *files, "--problem", tmp_path / "other.toml")
    with pytest.raises(CompareError, match="reached"):
        run("compare", *files, "--problem", tmp_path / "other.toml", "--set", "tokens.sigma=0.5")
    mine = ap.load_problem(tmp_path / "mine.toml")
    with pytest.raises(CompareError, match="reached"):
        ap.compare(theory(recorded), runs(recorded), problem=mine)
    with pytest.raises(ProblemError, match="a function of a module"):  # what the dataset has is no problem of his
        ap.compare(theory(recorded), runs(recorded), problem=recorded)
    assert [type(problem) for problem in reached] == [Problem] * 3


def test_a_comparison_refuses_what_is_no_problem(reached):
    data = SimpleNamespace(theory=theory(PAPER), runs=runs(PAPER))
    text: Any = PAPER.to_toml()
    with pytest.raises(ProblemError, match="problem must be a Problem"):
        ap.compare(data.theory, data.runs, problem=text)
    for problem in (None, PAPER):
        with pytest.raises(CompareError, match="reached"):
            ap.compare(data.theory, data.runs, problem=problem)
    assert reached == [PAPER, PAPER]
