"""Inputs that have no end, are waited for, or are larger than can be meant: refused in a sentence, and at once."""

import hashlib
import importlib
import os
import re
import signal
import socket
import tomllib
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest
from click.testing import CliRunner
from made_up import made_up_point

from attnphase.cli.commands import main
from attnphase.data import files
from attnphase.data.build import from_points
from attnphase.data.files import load_dataset
from attnphase.errors import AttnphaseError, DatasetError, ExperimentError, ProblemError
from attnphase.files import checkpoints
from attnphase.files import reading as inputs
from attnphase.files.reading import LARGEST_TEXT, check_input, read_input
from attnphase.problem import (
    MAX_ATOMS,
    Cluster,
    Law,
    Positions,
    Problem,
    SpectrumLaw,
    Teacher,
    Tokens,
    atoms_file,
    load_problem,
    spectrum,
)
from attnphase.spectrum import read_csv


def of_sentence(sentence):
    return LookupError(sentence)


def load_checkpoint(path):
    pytest.importorskip("torch", reason="experiments need PyTorch")
    from attnphase.experiments.checkpoint import Checkpoint

    return Checkpoint.read(path)


def in_a_field(path):
    return Problem().with_fields({"tokens.spectrum": str(path)})


def as_a_prior(path):
    return Problem().with_fields({"teacher.prior": "atoms", "teacher.prior_values": str(path)})


READERS = {
    load_problem: "name a TOML file",
    read_csv: "name a CSV file",
    in_a_field: "name a CSV file",
    as_a_prior: "name a CSV file",
    load_dataset: "name a netCDF file",
    load_checkpoint: "name a checkpoint",
}


@pytest.fixture(autouse=True)
def ends():
    """A test that waits for what never comes fails; generous, as nothing here is a matter of seconds."""

    def give_up(number, frame):
        raise RuntimeError("an input was waited for")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


# --------------------------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("pipe", "this is a pipe, not a regular file"),
        ("link to a pipe", "this is a pipe, not a regular file"),
        ("device", "this is a device, not a regular file"),
        ("socket", "this is a socket, not a regular file"),
        ("folder", "this is a folder"),
        ("missing", "there is no such file"),
        ("null character", r"must be the path of a file|cannot be read"),
    ],
)
def test_what_is_no_regular_file_is_refused(tmp_path, monkeypatch, read, kind, words):
    monkeypatch.chdir(tmp_path)
    path = Path({"device": "/dev/zero", "null character": "a\0b"}.get(kind, "it"))
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link to a pipe":
        os.mkfifo("pipe")
        path.symlink_to("pipe")
    elif kind == "folder":
        path.mkdir()
    elif kind == "socket":
        socket.socket(socket.AF_UNIX).bind(str(path))
    with pytest.raises(AttnphaseError) as caught:
        read(path)
    assert re.search(words, str(caught.value))
    if kind not in ("missing", "null character"):
        assert READERS[read] in str(caught.value)
        assert f"{path}: " in str(caught.value)


def test_what_becomes_a_pipe_after_it_was_looked_at_is_not_waited_for(tmp_path, monkeypatch):
    path, fault, looks = tmp_path / "it", inputs.fault_of, []

    def second_look(*args):
        looks.append(args)
        return fault(*args) if len(looks) > 1 else None

    os.mkfifo(path)
    monkeypatch.setattr(inputs, "fault_of", second_look)
    with pytest.raises(LookupError, match="this is a pipe"):
        read_input(path, "TOML file", 100, of_sentence)


def test_a_file_is_read_whole_up_to_the_limit(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(b"abcdefg\0\xff")
    for size in (9, 10**15):
        assert read_input(path, "TOML file", size, of_sentence) == b"abcdefg\0\xff"
    assert check_input(str(path), "TOML file", 9, of_sentence) == path
    too_large = r"the file has 3\.0 MiB, but a TOML file may have \d\.0 MiB at most"
    path.write_bytes(bytes(3 << 20))
    with pytest.raises(LookupError, match=too_large):
        check_input(path, "TOML file", 2 << 20, of_sentence)
    # what shows no size, as files of the system's, is counted as it is read
    monkeypatch.setattr(inputs, "fault_of", lambda *_: None)
    monkeypatch.setattr(inputs, "PART", 1 << 19)
    assert read_input(path, "TOML file", 3 << 20, of_sentence) == bytes(3 << 20)
    with pytest.raises(LookupError, match=too_large):
        read_input(path, "TOML file", (3 << 20) - 1, of_sentence)


@pytest.mark.parametrize("read", [load_problem, read_csv])
def test_texts_of_a_size_that_no_problem_has_are_not_read(tmp_path, read):
    with (tmp_path / "text").open("wb") as file:
        file.truncate(LARGEST_TEXT + 1)  # takes no place on the disk
    with pytest.raises(ProblemError, match=r"the file has 256\.0 MiB, but a \w+ file may have 256\.0 MiB at most"):
        read(tmp_path / "text")


@pytest.mark.parametrize("error", [AttributeError, OSError, RuntimeError, ValueError])
def test_whatever_a_damaged_file_raises_is_a_sentence(tmp_path, monkeypatch, error):
    """A byte in the list of attributes gives an AttributeError, elsewhere it is another one."""
    path = tmp_path / "a.nc"
    netCDF4.Dataset(path, "w").close()

    def damaged(name, refuse):
        raise error("NetCDF: Can't open HDF5 attribute")

    monkeypatch.setattr(files, "check_content", damaged)
    with pytest.raises(DatasetError, match=r"truncated or damaged \(NetCDF: Can't open HDF5 attribute\)\.$"):
        load_dataset(path)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files are listed on Linux alone")
def test_damaged_files_are_closed(tmp_path):
    """HDF5 would take what it knows of an open one for what is written there next, and end the process."""
    path, generator = tmp_path / "a.nc", np.random.default_rng(3)
    ds = from_points([made_up_point(Problem(), 1.3, "semantic")], {"alpha": [1.3]})
    files.write_dataset(ds, path)
    whole, refused = np.frombuffer(path.read_bytes(), dtype=np.uint8), 0
    for _ in range(40):
        damaged = whole.copy()
        damaged[generator.integers(len(whole), size=20)] = generator.integers(256, size=20)
        path.write_bytes(damaged.tobytes()[: generator.integers(100, len(whole))])
        try:
            load_dataset(path)
        except DatasetError:
            refused += 1
        assert not any(one.exists() and one.samefile(path) for one in Path("/proc/self/fd").iterdir())
    assert refused > 20


@pytest.mark.parametrize(("read", "error"), [(load_dataset, DatasetError), (load_checkpoint, ExperimentError)])
def test_the_largest_datasets_and_checkpoints(tmp_path, monkeypatch, read, error):
    with (tmp_path / "it").open("wb") as file:
        file.truncate(3 << 20)
    home = files if read is load_dataset else checkpoints
    with pytest.raises(error, match="damaged"):
        read(tmp_path / "it")
    monkeypatch.setattr(home, "LARGEST_BINARY", 2 << 20)
    with pytest.raises(error, match=r"the file has 3\.0 MiB, but a .* may have 2\.0 MiB at most"):
        read(tmp_path / "it")


def test_a_dataset_that_would_fill_the_memory_is_not_read(tmp_path):
    """What was never written to a netCDF file takes no place in it."""
    with netCDF4.Dataset(tmp_path / "a.nc", "w") as file:
        file.createDimension("alpha", 2**40)
        file.createVariable("alpha", "f8", ("alpha",), chunksizes=(1024,))
    assert (tmp_path / "a.nc").stat().st_size < 10**6
    with pytest.raises(DatasetError, match=r'a\.nc: variable "alpha" has 1099511627776 entries'):
        load_dataset(tmp_path / "a.nc")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("weight,variance_0\n" + "0.1,0.2\n" * 30, "more lines than the 5 atoms"),
        ("weight,variance_0\n" + "0.1,0.2\n" * 6, "must have at most 5 atoms, but has 6"),
        ("weight,variance_0\n" + "\n" * 30, "more lines than the 5 atoms"),
        ("weight,variance_0\n0.1,0.2" + "1" * 300, "line 2 has more than 100 characters"),
        ("weight," * 300, "line 1 has more than 100 characters"),
    ],
)
def test_files_of_more_than_a_spectrum(tmp_path, monkeypatch, text, words):
    for home in (atoms_file, spectrum):
        monkeypatch.setattr(home, "MAX_ATOMS", 5)
    monkeypatch.setattr(atoms_file, "LONGEST_LINE", 100)
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(ProblemError) as caught:
        in_a_field(tmp_path / "a.csv")
    assert caught.value.field == "tokens.spectrum"
    assert words in str(caught.value)
    (tmp_path / "a.csv").write_text("weight,variance_0,variance_1\n" + "0.2,0.2,0.3\n" * 5)
    assert len(in_a_field(tmp_path / "a.csv").spectrum_atoms()[0]) == 5


# --------------------------------------------------------------------------------------------------------------- sizes


class Untouched(list):
    """A list whose length may be asked for, and nothing else."""

    def __iter__(self):
        raise RuntimeError("looked into")


class Sized:
    """As `Untouched`, and no list."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length


ONE: Any = [{}]  # a cluster as in a TOML

LISTS = {
    "tokens.sigma": (lambda v: Tokens(length=16, sigma=v), [0.3], 16),
    "tokens.clusters": (lambda v: Tokens(kind="mixture", clusters=v), [{"sigma": 0.4}], 64),
    "tokens.clusters.mean": (lambda v: Cluster(mean=v), [0.3], 64),
    "tokens.law.weights": (lambda v: Law(weights=v), [0.01], 64),
    "tokens.law.transition": (lambda v: Law(kind="markov", transition=v), [[0.1] * 64], 64),
    "tokens.mean_positions": (lambda v: Tokens(kind="mixture", length=16, clusters=ONE, mean_positions=v), [[]], 16),
    "tokens.mean_teacher": (lambda v: Tokens(kind="mixture", clusters=ONE, mean_teacher=v), [[]], 16),
    "positions.gram": (lambda v: Positions(gram=v), [[0.0] * 16], 16),
    "positions.teacher": (lambda v: Positions(teacher=v), [[0.1] * 16], 16),
    "teacher.mixing": (lambda v: Teacher(mixing=v), [[0.1] * 16], 16),
    "tokens.spectrum[0].variances": (lambda v: atom(variances=v), [0.3], 1024),
    "tokens.spectrum[0].positions": (lambda v: atom(positions=v), [0.3], 16),
    "tokens.spectrum[0].means": (lambda v: atom(means=v), [0.3], 1024),
    "tokens.spectrum[0].teacher": (lambda v: atom(teacher=v), [0.3], 16),
    "tokens.spectrum.variance": (lambda v: SpectrumLaw(kind="isotropic", variance=v), [0.3], 1024),
    "tokens.spectrum.variances": (lambda v: SpectrumLaw(kind="two-level", variances=v, fraction=0.3), [0.3], 2),
}  # fmt: skip


def atom(**values: Any):
    spectrum: Any = [{"weight": 1.0, "variances": [0.2, 0.3], **values}]
    return Tokens(spectrum=spectrum)


@pytest.mark.parametrize("name", LISTS)
def test_the_length_of_a_list_is_checked_before_what_is_in_it(name):
    make, entry, most = LISTS[name]
    for count in (most + 1, 10**6):
        field = name.replace("[0]", "")
        if name == "tokens.clusters":
            count += 1024 - 64  # a list of lists may have as many as that, of which another sentence is the better one
        with pytest.raises(ProblemError) as caught:
            make(Untouched(entry * count))
        assert f"{name} must be" in str(caught.value)
        assert f"has {count} entries, more than {most if name != 'tokens.clusters' else 1024}" in str(caught.value)
        assert field.startswith(caught.value.field)
    try:
        make(entry * most)
    except ProblemError as error:  # it may not go with the rest
        assert "entries, more than" not in str(error)


@pytest.mark.parametrize("value", [np.zeros((1000, 1000)), [[0.5] * 1000] * 2, np.zeros((2, 17)), Sized(17)])
def test_tables_are_not_looked_into_if_one_side_is_too_long(value):
    with pytest.raises(ProblemError, match=r"teacher\.mixing must be .* entries, more than 16\.") as caught:
        Problem().with_fields({"teacher.mixing": value})
    assert ("has a list of" in str(caught.value)) == (len(value) == 2)


def test_an_array_of_too_many_dimensions_is_not_looked_into():
    deep: Any = np.broadcast_to(0.5, (2, 2, 10**15))
    with pytest.raises(ProblemError, match=r"teacher\.mixing must be .* is \[0\.5, 0\.5, .*\.\.\.\]\."):
        Teacher(mixing=deep)


@pytest.mark.parametrize(
    "table", [np.zeros((64, 64, 65)), [[[0.5] * 1000] * 1000] * 1000, [[0.5] * 1000] * 1000, [[]] * 600_000]
)
def test_a_laws_table_is_counted_before_it_is_looked_into(table):
    with pytest.raises(ProblemError, match=r"tokens\.law\.table must be .* it has more than 262144 entries\."):
        Law(kind="table", table=table)


def test_a_million_atoms_are_not_looked_into():
    for count in (MAX_ATOMS + 1, 10**6):
        for make in (lambda v: Tokens(spectrum=v), lambda v: Problem().with_fields({"tokens.spectrum": v})):
            with pytest.raises(ProblemError, match=f"must have at most 65536 atoms, but has {count}"):
                make(Untouched([{}] * count))


def nested(depth):
    value = 0.5
    for _ in range(depth):
        value = [value]
    return value


DEEP = {
    "teacher.mixing": lambda v: Teacher(mixing=v),
    "teacher.omega": lambda v: Teacher(omega=v),
    "teacher.score": lambda v: Teacher(score=v),
    "teacher": lambda v: Problem.from_dict({"teacher": v}),
    "problem": Problem.from_dict,
    "tokens.sigma": lambda v: Problem().with_fields({"tokens.sigma": v}),
    "tokens.length": lambda v: Problem().with_fields({"tokens.length": v}),
    "tokens.clusters": lambda v: Tokens(kind="mixture", clusters=v),
    "tokens.spectrum": lambda v: Tokens(spectrum=v),
    "tokens.law": lambda v: Law(kind="table", table=v),
}


@pytest.mark.parametrize("field", DEEP)
@pytest.mark.parametrize("depth", [17, 500, 5_000])
def test_lists_in_lists_without_end(field, depth):
    value = nested(depth)
    circle = []
    circle.append(circle)
    for one in (value, circle):
        with pytest.raises(ProblemError) as caught:
            DEEP[field](one)
        assert caught.value.field == field
        assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[teacher]\nmixing = [" + ("[" + "0.5," * 1000 + "],") * 1000 + "]", r"about 100\d{4} values"),
        ("[tokens]\nspectrum = [" + "{weight = 1e-6, variances = [0.2, 0.3]}," * 10**5 + "]", "at most 65536 atoms"),
        ("".join(f"[a{i}]\n" for i in range(600_000)), "about 600000 values"),
        ("".join(f"a{i}=1\n" for i in range(600_000)), "about 600000 values"),
        (f"[teacher]\n{'a.' * 20_000}b = 1", "nested too deeply"),
    ],
)
def test_toml_that_no_problem_has_is_not_parsed(monkeypatch, tmp_path, text, words):
    def loads(_):
        raise RuntimeError("parsed")

    monkeypatch.setattr(tomllib, "loads", loads)
    (tmp_path / "big.toml").write_text(text)
    for read in (Problem.from_toml, lambda _: load_problem(tmp_path / "big.toml")):
        with pytest.raises(ProblemError, match=words):
            read(text)


def test_the_largest_law_and_the_longest_comment_are_parsed(monkeypatch):
    """Counted as text: a table for 64 clusters of three tokens, and prose beside it."""
    row = "[" + "0.0, " * 64 + "],"
    text = "# ... and so on, the weights of it.\n" * 10 + "[tokens.law]\ntable = [" + ("[" + row * 64 + "],") * 64 + "]"
    parsed = []
    monkeypatch.setattr(tomllib, "loads", lambda given: parsed.append(given) or {})
    Problem.from_toml(text)
    assert parsed == [text]


def test_a_value_is_shown_in_short_and_not_looked_through():
    values: list[Any] = [Untouched(range(10**6)), np.arange(10**6)]
    for value in values:
        with pytest.raises(
            ProblemError, match=r"teacher\.omega must be a number from 0 to 1, but it is \[0, .*\.\.\.\]"
        ):
            Teacher(omega=value)


# --------------------------------------------------------------------------------------------------------- experiments


def simulate(**settings):
    pytest.importorskip("torch", reason="experiments need PyTorch")
    from attnphase import simulate

    given = {"alpha": 1.2, "dimension": 20, "seeds": 2, **settings}
    return simulate(Problem(), given.pop("alpha"), **given)


@pytest.mark.parametrize(
    ("settings", "runs"),
    [
        ({"seeds": 10**8}, "100000000"),
        ({"seeds": 10**18}, "1000000000000000000"),
        ({"seeds": 10**6 + 1}, "1000001"),
        ({"seeds": 10**4, "alpha": np.linspace(1, 2, 101)}, "1010000"),
        ({"seeds": 10**5, "start": ["semantic", "positional"], "dimension": [20, 30, 40, 50, 60, 70]}, "1200000"),
    ],
)
def test_more_runs_than_can_be_meant(settings, runs):
    with pytest.raises(ProblemError) as caught:
        simulate(**settings)
    assert caught.value.field == "seeds"
    assert f"{runs} runs are asked for" in str(caught.value)
    assert "1000000 at most" in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"seeds": 10**6}, "the results of 1000000 runs need about 28.8 GiB"),
        ({"optimizer": "gd", "steps": 10**9, "trajectory": 10}, "with 100000001 records of the trajectory each"),
        ({"test_samples": 10**9}, "lower the dimension or alpha, or test_samples, or"),
        ({"dimension": 10**9}, "lower the dimension or alpha, or use"),
    ],
)
def test_results_that_do_not_fit_are_refused_before_anything_is_drawn(monkeypatch, settings, words):
    pytest.importorskip("torch", reason="experiments need PyTorch")
    home = importlib.import_module("attnphase.experiments.runs")
    monkeypatch.setattr(home, "available_memory", lambda device: 40 << 30)
    monkeypatch.setattr(home, "draw_instance", lambda *_: pytest.fail("drawn"))
    with pytest.raises(ExperimentError) as caught:
        simulate(**settings)
    assert words in str(caught.value)


NUMBER = "tanh(0.31+" * 18 + "0.7" + ")" * 18  # without a bound on its levels it takes minutes to evaluate
HANGING = {
    "score": ('score = "softmax"', f'score = "{NUMBER}*z"'),
    "loss": ("[regularizer]", f'[loss]\nkind = "expression"\nexpression = "{NUMBER}*(h0_0-k0_0)**2"\n\n[regularizer]'),
    "regularizer": ('kind = "ridge"', f'kind = "expression"\nexpression = "{NUMBER}*w**2"'),
}
READING = (
    "figure fig2 --data own.nc -o own.png",
    "figure fig3 --data own.nc -o own.png",
    "explore own.nc -o own.html",
    "compare own.nc own.nc",
    "sweep --alpha 0.7,1.3 -o own.nc --resume",
)


@pytest.mark.parametrize("command", READING)
@pytest.mark.parametrize("place", HANGING)
def test_a_formula_that_hangs_is_refused_at_once_in_a_dataset_too(place, command, tmp_path, monkeypatch):
    """Its hash is that of the changed problem, so that nothing but the formula is wrong."""
    problem = Problem.paper(omega=0.37)
    ds = from_points([made_up_point(problem, alpha, "semantic") for alpha in (0.7, 1.3)], {"alpha": [0.7, 1.3]})
    old, new = HANGING[place]
    assert old in ds.attrs["problem"]
    text = ds.attrs["problem"].replace(old, new)
    ds.attrs |= {"problem": text, "problem_hash": hashlib.sha256(text.encode()).hexdigest()[:16]}
    ds.to_netcdf(tmp_path / "own.nc")
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, command.split(), prog_name="attnphase")
    assert result.exit_code == 2, result.output
    assert re.fullmatch(
        r'attnphase: error: own\.nc: global attribute "problem" is not a problem: .*'
        r"more than 8 functions and powers, .*; write its value\..*\n",
        result.stderr,
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["own.nc"]
