"""Data names no code that is imported and no file that is opened: only a problem that the user gives may.

Not public: `problem_of`, the problem that a dataset came with, as `compare` and figures take it.
"""

import copy
import hashlib
import io
import pickle
import re
import sys
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest
import xarray as xr
from command import run

import attnphase as ap
from attnphase.data.reading import problem_of
from attnphase.errors import CompareError, DatasetError, ExperimentError, ProblemError

PAPER = ap.Problem.paper(omega=0.3).with_fields({"integration.rule": "sobol", "integration.nodes": 16})
SETTINGS = ap.SolverSettings(stability=False, identity=False)
MODULE = """
from pathlib import Path

Path(__file__).with_name("trace").touch()

def score(logits):
    return [z / 2 for z in logits]

def prox(v, step):
    return v / (1 + 0.3 * step)
"""
NAMING = {
    "student.score": (r'(\[student\][^[]*score = )"softmax"', r'\1"planted:score"'),
    "teacher.score": (r'(\[teacher\][^[]*score = )"softmax"', r'\1"planted:score"'),
    "regularizer.prox": (r"(\[regularizer\])[^[]*", '\\1\nkind = "prox"\nprox = "planted:prox"\n\n'),
}
each = pytest.mark.parametrize("field", NAMING)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Datasets of three kinds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("found"))
        return {
            "points": ap.sweep(PAPER, [1.1, 1.6], [0.2, 0.3], workers=1, settings=SETTINGS),
            "experiments": ap.simulate(PAPER, 1.1, "semantic", 20, 3, "gd", steps=2, test_samples=9),
            "bayes_optimal": ap.bayes_optimal(PAPER, 0.3, settings=ap.SolverSettings(max_nodes=2**11)),
        }


@pytest.fixture
def planted(tmp_path, monkeypatch):
    """A module in the working folder that leaves a trace when it is imported; returns whether it did."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("planted.py").write_text(MODULE)
    yield lambda: Path("trace").exists() or "planted" in sys.modules
    sys.modules.pop("planted", None)


def rewritten(ds: xr.Dataset, text: str, digest: str | None = None) -> xr.Dataset:
    """With another text for a problem, whose hash fits unless another is given."""
    return ds.assign_attrs(problem=text, problem_hash=digest or hashlib.sha256(text.encode()).hexdigest()[:16])


def naming(ds: xr.Dataset, field: str, digest: str | None = None) -> xr.Dataset:
    text, count = re.subn(*NAMING[field], ds.attrs["problem"])
    assert count == 1
    return rewritten(ds, text, digest)


def changed(ds: xr.Dataset, fields: dict[str, Any]) -> xr.Dataset:
    return rewritten(ds, problem_of(ds).with_fields(fields).to_toml())


@each
@pytest.mark.parametrize("fits", [True, False], ids=["whose hash fits", "whose hash does not fit"])
def test_no_reader_imports_what_a_dataset_names(planted, found, field, fits):
    for kind, ds in found.items():
        named = naming(ds, field, None if fits else "0123456789abcdef")
        named.to_netcdf(f"{kind}.nc")
        for read in (lambda ds=named: ap.validate_dataset(ds), lambda kind=kind: ap.load_dataset(f"{kind}.nc")):
            if fits:
                assert read().attrs["problem"] == named.attrs["problem"]
            else:
                with pytest.raises(DatasetError, match='"problem_hash" does not belong to "problem"'):
                    read()
        if fits:
            ap.save_dataset(named, f"{kind}.nc", force=True)
    for options in ((), ("--figure", "c.png")):
        told = run("compare", "points.nc", "experiments.nc", *options, code=2).stderr
        assert (f'{field} is "planted:' in told) == fits
        assert ("--problem problem.toml" in told) == fits
        assert ("one of them was changed" in told) != fits
    assert not planted()


def test_a_sweep_imports_nothing_that_its_finished_lines_name(planted, found, monkeypatch):
    """Lines of another's problem, put where the sweep keeps its own."""
    grid = {"alpha": [1.1], "omega": [0.2, 0.3], "branch": "semantic", "workers": 1, "settings": SETTINGS}
    ap.plan_sweep(PAPER, grid["alpha"], grid["omega"], "semantic", blocks=1, folder="run", settings=SETTINGS)
    ap.run_block("run", 1, workers=1)
    whole = ap.merge_blocks("run")
    for path in Path("run").glob("line-*.nc"):
        line = xr.load_dataset(path)
        naming(line, "student.score").to_netcdf(path)
    with pytest.raises(DatasetError, match="block 1 of 1 cannot be used"):
        ap.merge_blocks("run")
    ap.run_block("run", 1, workers=1)
    xr.testing.assert_equal(ap.merge_blocks("run"), whole)
    assert not planted()


@pytest.mark.parametrize("name", ["atoms.csv", "/dev/zero"])
def test_data_opens_no_file(planted, found, name):
    """Neither a spectrum that is there, nor one that would be waited for."""
    Path("atoms.csv").write_text("weight,variance_0,variance_1\n1,0.2,0.3\n")
    text = f'[tokens]\nspectrum = "{name}"\n'
    if name == "atoms.csv":
        assert ap.Problem.from_toml(text).spectrum_atoms()[1].tolist() == [[0.2, 0.3]]
    with pytest.raises(DatasetError, match=r"tokens\.spectrum names the file .* which data must not"):
        ap.validate_dataset(rewritten(found["points"], text))
    with pytest.raises(ProblemError, match=r"tokens\.spectrum names the file"):
        problem_of(found["points"]).with_fields({"tokens.spectrum": name})


def test_a_checkpoint_runs_nothing(planted):
    torch = pytest.importorskip("torch", reason="experiments need PyTorch")

    class Import:
        def __reduce__(self):
            return __import__, ("planted",)

    task = {"task": "{}", "plan": {}, "finished": {}, "running": None}
    images = [pickle.dumps({**task, "plan": Import()}, protocol=2)]
    for content in (
        {**task, "plan": Import()},
        {**task, "task": "no JSON"},
        {**task, "finished": 3},
        {"task": "{}"},
        5,
    ):
        torch.save(content, image := io.BytesIO())
        images.append(image.getvalue())
    for image in images:
        head = b"attnphase checkpoint of training runs\n"
        Path("a.checkpoint").write_bytes(head + hashlib.sha256(image).digest() + image)
        # and no advice of PyTorch's to run what is in it
        with pytest.raises(ExperimentError, match=r"is not a checkpoint of training runs, or it is damaged; remove it"):
            ap.simulate(PAPER, 1.1, dimension=20, checkpoint="a.checkpoint")
    assert not planted()


@each
def test_a_problem_of_data_is_not_solved_with_functions_of_modules(planted, found, field):
    problem = problem_of(naming(found["points"], field))
    copies = {
        "as read": problem,
        "changed": problem.with_fields({"teacher.omega": 0.21}),
        "changed to name one": problem_of(found["points"]).with_fields({"student.score": "planted:score"}),
        "copied": copy.deepcopy(problem),
        "sent to a worker": pickle.loads(pickle.dumps(problem)),
    }
    for one in copies.values():
        for use in (ap.solve, ap.sweep, ap.simulate, ap.bayes_optimal, ap.check):
            with pytest.raises(ProblemError, match=r'is "planted:\w+", a function of a module.*load_problem') as caught:
                use(one, 1.1)
            assert caught.value.field in (field, "student.score")
    assert not planted()
    trusted = ap.Problem.from_toml(problem.to_toml())
    assert planted()
    assert trusted == problem
    assert hash(trusted) == hash(problem)
    assert problem.with_fields({"teacher.omega": 0.21}) != trusted


def test_formulas_of_data_are_checked_and_used(found):
    penalty = {"regularizer.kind": "expression", "regularizer.expression": "0.02*abs(w)**1.5"}
    ds = changed(found["points"], penalty)
    assert problem_of(ds).regularizer.expression == "0.02*abs(w)**1.5"
    for text, words in (("0.02*squrt(w)", 'unknown function "squrt"'), ("-w**2", "regularizer.expression cannot")):
        wrong = ds.attrs["problem"].replace("0.02*abs(w)**1.5", text)
        with pytest.raises(DatasetError, match="is not a problem") as caught:
            ap.validate_dataset(rewritten(ds, wrong))
        assert words in str(caught.value)
        with pytest.raises(ProblemError, match=r"regularizer\.expression cannot be used"):
            problem_of(ds).with_fields({"regularizer.expression": text})


NUMBER = "tanh(0.31+" * 18 + "0.7" + ")" * 18  # it would take minutes to evaluate
HANGING = {
    "score": ('score = "softmax"', f'score = "{NUMBER}*z"'),
    "loss": ("[regularizer]", f'[loss]\nkind = "expression"\nexpression = "{NUMBER}*(h0_0-k0_0)**2"\n\n[regularizer]'),
    "regularizer": ('kind = "ridge"', f'kind = "expression"\nexpression = "{NUMBER}*w**2"'),
}


@pytest.mark.parametrize("place", HANGING)
def test_a_formula_of_data_that_hangs_is_refused_at_once(tmp_path, monkeypatch, found, place):
    monkeypatch.chdir(tmp_path)
    rewritten(found["points"], found["points"].attrs["problem"].replace(*HANGING[place])).to_netcdf("own.nc")
    told = run("compare", "own.nc", "own.nc", code=2).stderr
    assert 'own.nc: global attribute "problem" is not a problem: ' in told
    assert "more than 8 functions and powers" in told
    assert [path.name for path in tmp_path.iterdir()] == ["own.nc"]


def test_a_comparison_takes_the_users_own_problem(planted, found):
    theory, runs = (naming(found[kind], "regularizer.prox") for kind in ("points", "experiments"))
    ap.save_dataset(theory, "theory.nc")
    ap.save_dataset(runs, "runs.nc")
    recorded = problem_of(runs)
    Path("mine.toml").write_text(recorded.to_toml())
    Path("other.toml").write_text(recorded.with_fields({"tokens.sigma": 0.47}).to_toml())
    with pytest.raises(ProblemError, match="a function of a module"):  # what the dataset has is no problem of his
        ap.compare(theory, runs, problem=recorded)
    assert not planted()
    mine = ap.load_problem("mine.toml")
    with pytest.raises(CompareError, match=r"tokens\.sigma is 0\.47 in it and 0\.5 in the experiment"):
        ap.compare(theory, runs, problem=ap.load_problem("other.toml"))
    assert ap.compare(theory, runs, problem=mine) is not None
    told = run("compare", "theory.nc", "runs.nc", "--problem", "other.toml", code=2).stderr
    assert "tokens.sigma is 0.47" in told


def test_a_dataset_that_would_fill_the_memory_is_not_read(tmp_path):
    """What was never written to a netCDF file takes no place in it."""
    with netCDF4.Dataset(tmp_path / "a.nc", "w") as file:
        file.createDimension("alpha", 2**40)
        file.createVariable("alpha", "f8", ("alpha",), chunksizes=(1024,))
    with pytest.raises(DatasetError, match=r'a\.nc: variable "alpha" has 1099511627776 entries'):
        ap.load_dataset(tmp_path / "a.nc")


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files are listed on Linux alone")
def test_damaged_files_are_refused_and_closed(tmp_path, found):
    """HDF5 would take what it knows of an open one for what is written there next, and end the process."""
    path, generator = tmp_path / "a.nc", np.random.default_rng(3)
    ap.save_dataset(found["points"], path)
    whole, refused = np.frombuffer(path.read_bytes(), dtype=np.uint8), 0
    for _ in range(40):
        damaged = whole.copy()
        damaged[generator.integers(len(whole), size=20)] = generator.integers(256, size=20)
        path.write_bytes(damaged.tobytes()[: generator.integers(100, len(whole))])
        try:
            ap.load_dataset(path)
        except DatasetError:
            refused += 1
        assert not any(one.exists() and one.samefile(path) for one in Path("/proc/self/fd").iterdir())
    assert refused > 20
