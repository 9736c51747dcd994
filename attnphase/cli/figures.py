"""Commands that draw the paper's figures, from data or from scratch."""

from __future__ import annotations

import time
from pathlib import Path

import click

from attnphase import arguments
from attnphase.cli.options import force_option, output_option, quiet_option, workers_option
from attnphase.cli.outcomes import interruption_told, kept_lines, status_counts
from attnphase.data.text import format_value, pairs_text, terminal_width
from attnphase.errors import ProblemError
from attnphase.extras import require_plotly
from attnphase.files.writing import check_data, check_figure, check_folder, check_output
from attnphase.fixed_points.settings import SolverSettings
from attnphase.processes.progress import progress_line

__all__ = ["explore", "figure", "phase_diagram"]

_OMEGA_OF_FIG2 = 0.3
_OMEGAS_SHOWN = (0.2, 0.3, 0.4)


@click.command()
@click.argument("name", type=click.Choice(["fig2", "fig3"]))
@click.option("--data", type=click.Path(path_type=Path), help="netCDF file to draw; computed if left out.")
@click.option(
    "--at",
    metavar="FIELD=VALUE",
    multiple=True,
    help="Draw one value of a field that the data varies too, as tokens.sigma=0.5; may be given several times.",
)
@click.option("--thresholds", type=click.Path(path_type=Path), help="netCDF file of thresholds to draw over fig3.")
@output_option(help="File of the figure, .png or .pdf; NAME.png by default.")
@force_option
@workers_option
@quiet_option
def figure(
    name: str,
    data: Path | None,
    at: tuple[str, ...],
    thresholds: Path | None,
    output: Path | None,
    force: bool,
    workers: int | None,
    quiet: bool,
) -> int:
    """Draw a figure of the paper, from data or from scratch.

    fig2 has curves over alpha, fig3 maps over alpha and omega; of data that varies another field, over that one.
    """
    from attnphase.problem import Problem, parse_setting

    chosen = dict(map(parse_setting, at))
    if len(chosen) < len(at):
        raise ProblemError("at", "--at names a field twice: select one value of it.")
    if at and data is None:
        raise ProblemError("at", "--at selects from a dataset: name one with --data.")
    if workers is not None:
        arguments.whole("workers", workers, 1)
    output = check_figure(output or Path(f"{name}.png"), force)
    if thresholds is not None and name != "fig3":
        raise ProblemError("thresholds", "--thresholds are drawn over a map: ask for fig3.")
    for file in filter(None, (data, thresholds)):
        check_data(file)
    from attnphase.data.files import load_dataset
    from attnphase.figures import FIGURES, save_figure

    if data is not None:
        ds = load_dataset(data)
    else:
        alphas, omegas = _paper_grid(25, 26)
        grid = {"alpha": alphas, "omega": (_OMEGA_OF_FIG2,) if name == "fig2" else omegas}
        from attnphase.sweeps.grid import sweep

        with interruption_told(lambda: kept_lines(None, "run the same command again")):
            ds = sweep(problem=Problem(), workers=workers, progress=not quiet, **grid)
    over = {} if thresholds is None else {"thresholds": load_dataset(thresholds)}
    with progress_line(not quiet, "drawing"):
        save_figure(FIGURES[name](ds, at=chosen, **over), output)
    if not quiet:
        click.echo(str(output))
    return 0


@click.command()
@click.argument("data", metavar="DATA.nc", type=click.Path(path_type=Path))
@click.option("--runs", type=click.Path(path_type=Path), help="netCDF file of training runs to draw beside the curves.")
@click.option("--thresholds", type=click.Path(path_type=Path), help="netCDF file of thresholds to draw over the map.")
@output_option(required=True, help="File of the page, .html.")
@force_option
@quiet_option
def explore(data: Path, runs: Path | None, thresholds: Path | None, output: Path, force: bool, quiet: bool) -> int:
    """Write a page that moves: one file, which needs neither a server nor a network.

    DATA.nc is a sweep, training runs or the histogram task. The page has a map of any variable over any two fields, and
    the curves through the point that is clicked.
    """
    require_plotly()
    if output.suffix.lower() not in (".html", ".htm"):
        raise ProblemError("output", f"--output must end in .html, not {output.name}.")
    output = check_output(output, force)
    for file in filter(None, (data, runs, thresholds)):
        check_data(file)
    from attnphase.data.files import load_dataset
    from attnphase.explorer.page import explore as page_of

    others = {"runs": runs, "thresholds": thresholds}
    with progress_line(not quiet, "writing"):
        page = page_of(load_dataset(data), **{name: load_dataset(file) for name, file in others.items() if file})
        page.save(output, force=force)
    if not quiet:
        click.echo(str(output))
    return 0


@click.command("phase-diagram")
@click.option(
    "--output", type=click.Path(path_type=Path, file_okay=False), required=True, help="Folder for the results."
)
@click.option("--alphas", type=click.IntRange(2, 1000), default=25, show_default=True, help="Sample complexities.")
@click.option(
    "--omegas", type=click.IntRange(2, 1000), default=26, show_default=True, help="Weights of the positional part."
)
@click.option(
    "--nodes",
    type=click.IntRange(16),
    default=256,
    show_default=True,
    help="Sobol points per replicate, a power of two.",
)
@workers_option
@quiet_option
def phase_diagram(output: Path, alphas: int, omegas: int, nodes: int, workers: int | None, quiet: bool) -> int:
    """Compute and draw the paper's phase diagram.

    Writes phase_diagram.nc, fig2.png and fig3.png. If interrupted, the same command goes on where it stopped.
    """
    begin = time.monotonic()
    check_folder(output)
    if workers is not None:
        arguments.whole("workers", workers, 1)
    from attnphase.problem import Problem

    problem = Problem.paper().with_fields({"integration.rule": "sobol", "integration.nodes": nodes})
    from attnphase.figures import fig2, fig3, loss_crossing, save_figure
    from attnphase.sweeps.grid import sweep

    output.mkdir(parents=True, exist_ok=True)
    alpha, omega = _paper_grid(alphas, omegas)
    data = output / "phase_diagram.nc"
    with interruption_told(lambda: kept_lines(data, "run the same command again to go on")):
        ds = sweep(
            problem=problem,
            alpha=alpha,
            omega=omega,
            settings=SolverSettings(tolerance=1e-6, max_maps=100),
            workers=workers,
            output=data,
            resume="fitting",  # lines of another grid, or of other nodes, stay for the command that made them
            force=True,
            progress=not quiet,
        )
    figures = {"fig2.png": fig2, "fig3.png": fig3}
    with progress_line(not quiet, "drawing"):
        for name, draw in figures.items():
            save_figure(draw(ds), output / name)
    if quiet:
        return 0
    pairs = [("points", status_counts(ds, problem))]
    for value in _OMEGAS_SHOWN:
        line = ds.sel(omega=value, method="nearest")
        alpha_c = loss_crossing(line)
        pairs.append(
            (f"alpha_c at omega = {float(line['omega']):g}", format_value(alpha_c.alpha, alpha_c.standard_error))
        )
    pairs.append(("time", f"{time.monotonic() - begin:.0f} s"))
    pairs.append(("files", ", ".join(str(output / name) for name in (data.name, *figures))))
    click.echo(pairs_text(pairs, terminal_width()))
    return 0


def _paper_grid(alphas: int, omegas: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The grid of Figure 3; the omega of Figure 2 is on it in any case."""
    import numpy as np

    omega = np.linspace(0, 0.5, omegas)
    nearest = np.abs(omega - _OMEGA_OF_FIG2).argmin()
    if np.isclose(omega[nearest], _OMEGA_OF_FIG2):
        omega[nearest] = _OMEGA_OF_FIG2
    else:
        omega = np.union1d(omega, _OMEGA_OF_FIG2)
    return tuple(np.linspace(0.05, 2, alphas).tolist()), tuple(omega.tolist())
