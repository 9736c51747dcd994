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
from attnphase.processes.progress import progress_line

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
    from attnphase.experiments.histogram.settings import FrozenPlan, HistogramSizes

    asked: dict[str, Any] = {"mechanism": mechanism, "runs": runs, "epochs": epochs, "seed": seed}
    asked |= {"sizes": HistogramSizes(**sizes), "batch": batch, "learning_rate": learning_rate}
    asked |= {"device": device, "dtype": dtype}
    FrozenPlan.of(check_folder(output), **asked)
    from attnphase.experiments.histogram.stages import train_histogram

    with interruption_told(lambda: _kept_epochs(output)):
        train_histogram(output, **asked, progress=not quiet)
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
    from attnphase.experiments.histogram.settings import UnfrozenPlan

    UnfrozenPlan.of(folder, **settings)
    from attnphase.experiments.histogram.stages import unfreeze_histogram

    with interruption_told(lambda: _kept_epochs(folder)):
        unfreeze_histogram(folder, progress=not quiet, **settings)
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
    from attnphase.experiments.histogram.settings import MECHANISMS, present_checkpoints

    present_checkpoints(folder, MECHANISMS)
    output = check_folder(output or folder)
    names = ("report.nc", "report.txt", "attention.png", "learning.png")
    if output.exists():
        for name in names:
            check_output(output / name, force)
    from attnphase.data.files import save_dataset
    from attnphase.experiments.histogram.report import histogram_dataset, histogram_text
    from attnphase.figures import attention_figure, learning_figure, save_figure

    with progress_line(not quiet, "measuring"):
        ds = with_command(histogram_dataset(folder, sequences or None))
    if not 0 <= run < ds.sizes["run"]:
        raise ProblemError("run", f"run must lie between 0 and {ds.sizes['run'] - 1}, not {run}.")
    output.mkdir(parents=True, exist_ok=True)
    data, text, attention, learning = (check_output(output / name, force) for name in names)
    save_dataset(ds, data, force)
    write_file(text, f"{histogram_text(ds)}\n".encode())
    with progress_line(not quiet, "drawing"):
        save_figure(attention_figure(ds, run), attention)
        save_figure(learning_figure(ds), learning)
    if not quiet:
        files = wrapped(", ".join(str(output / name) for name in names), terminal_width())
        click.echo(f"{histogram_text(ds, terminal_width())}\n\n{files}")
    return 0


def _print_histogram(folder: Path, quiet: bool) -> int:
    """The table of what a folder holds; exit code 1 if a run diverged."""
    from attnphase.data.variables import RunStatus
    from attnphase.experiments.histogram.report import histogram_dataset, histogram_text

    with progress_line(not quiet, "measuring"):
        ds = histogram_dataset(folder)
    if not quiet:
        click.echo(histogram_text(ds, terminal_width()))
    diverged = int((ds["status"] == RunStatus.diverged).any("stage").sum())
    if diverged:
        click.echo(f"attnphase: {diverged} runs diverged; lower the learning rate, or the noise.", err=True)
    return 1 if diverged else 0


def _kept_epochs(folder: Path) -> str:
    return f"finished epochs are kept in {folder}; run the same command again to go on"
