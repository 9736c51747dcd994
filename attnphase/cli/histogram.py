"""The commands of the histogram task: train, unfreeze, report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from attnphase.cli.options import device_option, force_option, quiet_option
from attnphase.cli.outcomes import interruption_told, with_command
from attnphase.cli.values import Symbols
from attnphase.data.text import terminal_width, wrapped
from attnphase.errors import ProblemError
from attnphase.files.writing import check_folder, check_output, write_file
from attnphase.lazy import loaded_on_use
from attnphase.processes.progress import progress_line

with loaded_on_use(__name__):
    from attnphase import figures as plots
    from attnphase.data import files as netcdf
    from attnphase.data import variables
    from attnphase.experiments.histogram import report, stages
    from attnphase.experiments.histogram import settings as plans

__all__ = ["histogram"]

_mechanism = click.option(
    "--mechanism",
    type=click.Choice(["positional", "semantic", "both"]),
    default="both",
    show_default=True,
    help="What attention sees while it is frozen.",
)


@click.group(no_args_is_help=True)
def histogram() -> None:
    """Train a small transformer to count, with positional or semantic attention.

    First train, then unfreeze, then report. An interrupted command goes on when it is given again. docs/histogram.md
    tells the story.
    """


@histogram.command("train")
@_mechanism
@click.option(
    "--runs",
    type=int,
    default=3,
    show_default=True,
    help="Of each mechanism; each has its own random data and initial weights.",
)
@click.option("--epochs", type=int, default=200, show_default=True, help="In all, those made before included.")
@click.option("--seed", type=int, default=0, show_default=True, help="All random numbers follow from it.")
@click.option("--length", type=int, default=10, show_default=True, help="L, symbols of a sequence.")
@click.option("--alphabet", type=int, default=15, show_default=True, help="T, symbols to choose from.")
@click.option("--model-dimension", type=int, default=64, show_default=True, help="Length of an embedding; even.")
@click.option("--hidden", type=int, default=128, show_default=True, help="Units of the hidden layer.")
@click.option("--sequences", type=int, default=50_000, show_default=True, help="Drawn in all.")
@click.option("--training-share", type=float, default=0.7, show_default=True, help="Share of them to train on.")
@click.option("--batch", type=int, default=32, show_default=True, help="Sequences of a step.")
@click.option("--learning-rate", type=float, default=1e-3, show_default=True, help="Of Adam.")
@device_option
@click.option(
    "--dtype", type=click.Choice(["float32", "float64"]), default="float32", show_default=True, help="Of all weights."
)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, file_okay=False), required=True, help="Folder for the runs."
)
@quiet_option
def histogram_train(
    mechanism: str,
    runs: int,
    epochs: int,
    seed: int,
    batch: int,
    learning_rate: float,
    device: str,
    dtype: str,
    output: Path,
    quiet: bool,
    **sizes: Any,
) -> int:
    """Train runs whose attention sees one half of the embeddings.

    The state is written after every epoch, to one checkpoint for each mechanism.
    """
    asked: dict[str, Any] = {"mechanism": mechanism, "runs": runs, "epochs": epochs, "seed": seed}
    asked |= {"sizes": plans.HistogramSizes(**sizes), "batch": batch, "learning_rate": learning_rate}
    asked |= {"device": device, "dtype": dtype}
    plans.FrozenPlan.of(check_folder(output), **asked)
    with interruption_told(lambda: _kept_epochs(output)):
        stages.train_histogram(output, **asked, progress=not quiet)
    return _print_histogram(output, quiet)


@histogram.command("unfreeze")
@click.argument("folder", type=click.Path(path_type=Path))
@_mechanism
@click.option("--epochs", type=int, default=100, show_default=True, help="In all, those made before included.")
@click.option("--noise", type=float, default=1e-3, show_default=True, help="Standard deviation, before training.")
@click.option("--learning-rate", type=float, default=1e-3, show_default=True, help="Of plain gradient descent.")
@device_option
@click.option("--force", is_flag=True, help="Unfreeze anew runs that were unfrozen with other settings, or longer.")
@quiet_option
def histogram_unfreeze(folder: Path, quiet: bool, **settings: Any) -> int:
    """Free all weights of trained runs, add noise, and train on.

    FOLDER is that of attnphase histogram train.
    """
    plans.UnfrozenPlan.of(folder, **settings)
    with interruption_told(lambda: _kept_epochs(folder)):
        stages.unfreeze_histogram(folder, progress=not quiet, **settings)
    return _print_histogram(folder, quiet)


@histogram.command("report")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--sequence",
    "sequences",
    type=Symbols(),
    multiple=True,
    help="Whose attention matrix is drawn, as BAAC or 1,0,0,2; may be given several times. Three random ones by"
    " default.",
)
@click.option("--run", type=int, default=0, show_default=True, help="Whose attention matrices are drawn.")
@click.option("-o", "--output", type=click.Path(path_type=Path, file_okay=False), help="Folder; FOLDER by default.")
@force_option
@quiet_option
def histogram_report(
    folder: Path, sequences: tuple[tuple[int, ...], ...], run: int, output: Path | None, force: bool, quiet: bool
) -> int:
    """Write what trained runs have learnt.

    FOLDER is that of attnphase histogram train. Writes report.nc, report.txt, attention.png and learning.png.
    """
    plans.present_checkpoints(folder, plans.MECHANISMS)
    output = check_folder(output or folder)
    names = ("report.nc", "report.txt", "attention.png", "learning.png")
    if output.exists():
        for name in names:
            check_output(output / name, force)
    with progress_line(not quiet, "measuring"):
        ds = with_command(report.histogram_dataset(folder, sequences or None))
    if not 0 <= run < ds.sizes["run"]:
        raise ProblemError("run", f"run must lie between 0 and {ds.sizes['run'] - 1}, not {run}.")
    output.mkdir(parents=True, exist_ok=True)
    data, text, attention, learning = (check_output(output / name, force) for name in names)
    netcdf.save_dataset(ds, data, force=force)
    write_file(text, f"{report.histogram_text(ds)}\n".encode())
    with progress_line(not quiet, "drawing"):
        plots.save_figure(plots.attention_figure(ds, run), attention)
        plots.save_figure(plots.learning_figure(ds), learning)
    if not quiet:
        files = wrapped(", ".join(str(output / name) for name in names), terminal_width())
        click.echo(f"{report.histogram_text(ds, terminal_width())}\n\n{files}")
    return 0


def _print_histogram(folder: Path, quiet: bool) -> int:
    """The table of what a folder holds; exit code 1 if a run diverged."""
    with progress_line(not quiet, "measuring"):
        ds = report.histogram_dataset(folder)
    if not quiet:
        click.echo(report.histogram_text(ds, terminal_width()))
    diverged = int((ds["status"] == variables.RunStatus.diverged).any("stage").sum())
    if diverged:
        click.echo(f"attnphase: {diverged} runs diverged; lower the learning rate, or the noise.", err=True)
    return 1 if diverged else 0


def _kept_epochs(folder: Path) -> str:
    return f"finished epochs are kept in {folder}; run the same command again to go on"
