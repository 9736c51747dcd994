"""Commands that draw the paper's figures, from data or from scratch."""

from __future__ import annotations

import time
from importlib import import_module
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING

import click

from attnphase import arguments
from attnphase.cli.options import (
    allow_unconverged_option,
    asked_options,
    force_option,
    output_option,
    quiet_option,
    workers_option,
)
from attnphase.cli.outcomes import ended, files_named, interruption_told, kept_lines
from attnphase.data.text import format_value, pairs_text, terminal_width
from attnphase.errors import ProblemError, ViolatedWarning
from attnphase.extras import require_plotly
from attnphase.files.writing import check_data, check_figure, check_folder, check_output, write_file
from attnphase.fixed_points.settings import SolverSettings
from attnphase.lazy import loaded_on_use
from attnphase.processes.progress import progress_line

with loaded_on_use(__name__):
    from attnphase import figures as plots
    from attnphase.data import counts, outcomes, reading
    from attnphase.data import files as netcdf
    from attnphase.explorer import page as explorer
    from attnphase.figures import bayes_optimal as learners
    from attnphase.figures import selection
    from attnphase.paper import figures as paper_figures
    from attnphase.problem import problem as problems
    from attnphase.problem import toml
    from attnphase.sweeps import grid
    from attnphase.theories.bayes_optimal import run as bayes_optimal

if TYPE_CHECKING:
    import xarray as xr


__all__ = ["explore", "figure", "phase_diagram"]

_BEGUN = 1.5  # seconds in which a sweep has begun its workers
_OMEGAS_SHOWN = (0.2, 0.3, 0.4)

# figures that take an option, and what it is
_BELONGS = {
    "quantity": (("fig9",), "is drawn by fig9: ask for it."),
    "thresholds": (("fig3", "fig8"), "are drawn over a map: ask for fig3 or fig8."),
    "limit": (("limits", "gap"), "belongs to the figures limits and gap: ask for one of them."),
}


@click.command()
@click.argument("name", type=click.Choice(["fig2", "fig3", "fig8", "fig9", "limits", "gap"]))
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    multiple=True,
    help="netCDF file to draw; computed if left out. May be given several times for fig9, which has a panel for each.",
)
@click.option("--set", "changes", metavar="FIELD=VALUE", multiple=True, help="Change a field of what is computed.")
@click.option(
    "--at",
    metavar="FIELD=VALUE",
    multiple=True,
    help="Draw one value of a field that the data varies too, as tokens.sigma=0.5; may be given several times.",
)
@click.option("--quantity", metavar="NAME", help="What fig9 draws of --data, such as theta; test_error by default.")
@click.option("--thresholds", type=click.Path(path_type=Path), help="netCDF file of thresholds to draw over a map.")
@click.option(
    "--limit",
    type=click.Path(path_type=Path),
    help="netCDF file of the Bayes-optimal limit, for limits and gap; computed if left out.",
)
@output_option(help="File of the figure, .png, .pdf or what else matplotlib writes; NAME.png by default.")
@click.option("--with-data", is_flag=True, help="Write the data (.nc) and a caption with all parameters (.txt) too.")
@force_option
@workers_option
@quiet_option
def figure(
    name: str,
    data: tuple[Path, ...],
    changes: tuple[str, ...],
    at: tuple[str, ...],
    quantity: str | None,
    thresholds: Path | None,
    limit: Path | None,
    output: Path | None,
    with_data: bool,
    force: bool,
    workers: int | None,
    quiet: bool,
) -> int:
    """Draw a figure of the paper, from data or from scratch.

    fig2 has curves over alpha, fig3 maps over alpha and omega; of data that varies another field, over that one. fig8
    is fig3 for the second example of the teacher's positional part, fig9 has the test error along alpha for several
    values of a field. limits has the test errors along alpha beside the Bayes-optimal one, gap the phase diagram of
    their ratio: of any sweep with --data, and of what attnphase bayes-optimal wrote with --limit.
    """
    chosen = dict(map(toml.parse_setting, at))
    if len(chosen) < len(at):
        raise ProblemError("at", "--at names a field twice: select one value of it.")
    for option, given in (("at", at or None), ("quantity", quantity)):
        if given is not None and not data:
            raise ProblemError(option, f"--{option} selects from a dataset: name one with --data.")
    if changes and data:
        raise ProblemError("set", "--set changes what is computed: leave it out with --data.")
    if len(data) > 1 and name != "fig9":
        raise ProblemError("data", f"{name} is drawn from one dataset: give --data once.")
    if workers is not None:
        arguments.whole("workers", workers, 1)
    output = check_figure(output or Path(f"{name}.png"), force)
    for option, given in (("quantity", quantity), ("thresholds", thresholds), ("limit", limit)):
        figures, told = _BELONGS[option]
        if given is not None and name not in figures:
            raise ProblemError(option, f"--{option} {told}")
    beside_limit = name in _BELONGS["limit"][0]
    for file in filter(None, (*data, thresholds, limit)):
        check_data(file)
    sweeps = paper_figures.PAPER_FIGURES[name].sweeps
    labels = [f"-{i}" for i in range(1, len(data) + 1)] if data else [f"-{one.label}" for one in sweeps]
    kept = [output.with_name(f"{output.stem}{label if len(labels) > 1 else ''}.nc") for label in labels]
    if beside_limit:
        kept.append(output.with_name(f"{output.stem}-limit.nc"))
    beside = [*kept, output.with_suffix(".txt")] if with_data else []
    for file in beside:
        if any(file.absolute() == one.absolute() for one in data):
            raise ProblemError(
                "with_data", f"--with-data would write {file} over the data that is drawn: name another --output."
            )
        check_output(file, force)
    over = {} if thresholds is None else {"thresholds": netcdf.load_dataset(thresholds)}
    over |= {} if quantity is None else {"quantity": quantity}
    datasets = [netcdf.load_dataset(file) for file in data] if data else _computed(name, changes, workers, quiet)
    with files_named(theory=data, dataset=data):
        for ds in datasets:  # before captions and limits are made of them
            selection.check_dataset("theory", ds, "points")
            selection.need_dimensions(ds, "branch", "alpha")
            selection.check_quantity(ds, "test_error" if quantity is None else quantity)
    if with_data:  # first, so that nothing that drawing meets loses them
        for ds, file in zip(datasets, kept, strict=False):
            netcdf.save_dataset(ds, file, force=force)
        told = paper_figures.caption(name, datasets, chosen, thresholds=thresholds is not None, quantity=quantity)
        write_file(beside[-1], told.encode())
    if beside_limit:
        over["limit"] = (
            netcdf.load_dataset(limit) if limit is not None else _limit_of(datasets[0], name == "limits", quiet)
        )
        if with_data:
            netcdf.save_dataset(over["limit"], kept[-1], force=force)
    with progress_line(not quiet, "drawing"):
        named = {"thresholds": thresholds, "limit": limit}
        with files_named(dataset=data, theory=data, **{what: [file] for what, file in named.items() if file}):
            drawn = plots.FIGURES[name](datasets[0] if len(datasets) == 1 else datasets, at=chosen, **over)
        plots.save_figure(drawn, output)
    if not quiet:
        click.echo("\n".join(map(str, (output, *beside))))
    return 0


def _computed(name: str, changes: tuple[str, ...], workers: int | None, quiet: bool) -> list[xr.Dataset]:
    """The datasets of a figure of the paper, or of another problem with these changes."""
    settings, sweeps = dict(map(toml.parse_setting, changes)), paper_figures.PAPER_FIGURES[name].sweeps
    for taken in (field for one in sweeps for field in one.fields if field in settings):
        raise ProblemError("set", f"{name} varies {taken}: leave --set {taken} out.")
    found = []
    with interruption_told(lambda: kept_lines(None, "run the same command again")):
        for one in sweeps:
            problem = one.problem.with_fields(settings) if settings else one.problem
            found.append(grid.sweep(problem, one.alphas, fields=one.fields, workers=workers, progress=not quiet))
    return found


def _limit_of(theory: xr.Dataset, thresholds: bool, quiet: bool) -> xr.Dataset:
    """The Bayes-optimal limit of a sweep's problem, at its alphas and values of fields."""
    swept = {theory[dim].attrs.get("field", ""): theory[dim].to_numpy() for dim in map(str, theory["status"].dims)}
    fields = {
        name: [*values.tolist()] for name, values in swept.items() if name.split(".")[0] in learners.LEARNERS_SECTIONS
    }
    single = {name: values[0] for name, values in fields.items() if len(values) == 1}
    problem = reading.problem_of(theory).with_fields(single)
    several = {name: values for name, values in fields.items() if name not in single}
    thresholds = thresholds and not several
    with interruption_told(lambda: "nothing is kept; run attnphase bayes-optimal with -o, and give --limit"):
        alphas = theory["alpha"].to_numpy().tolist()
        return bayes_optimal.bayes_optimal(problem, alphas, fields=several, thresholds=thresholds, progress=not quiet)


@click.command()
@click.argument("data", metavar="DATA.nc", type=click.Path(path_type=Path))
@click.option("--runs", type=click.Path(path_type=Path), help="netCDF file of training runs, drawn with the curves.")
@click.option("--thresholds", type=click.Path(path_type=Path), help="netCDF file of thresholds to draw over the map.")
@output_option(required=True, help="File of the page, .html.")
@force_option
@quiet_option
def explore(data: Path, runs: Path | None, thresholds: Path | None, output: Path, force: bool, quiet: bool) -> int:
    """Write an interactive page: one file, which needs neither a server nor a network.

    DATA.nc is a sweep, training runs or the histogram task. The page has a map of any variable over any two fields, and
    the curves through the point that is clicked.
    """
    require_plotly()
    if output.suffix.lower() not in (".html", ".htm"):
        raise ProblemError("output", f"--output must end in .html, not {output.name}.")
    output = check_output(output, force)
    for file in filter(None, (data, runs, thresholds)):
        check_data(file)
    others = {"runs": runs, "thresholds": thresholds}
    with progress_line(not quiet, "writing"):
        asked = {name: file for name, file in others.items() if file}
        loaded = netcdf.load_dataset(data), {name: netcdf.load_dataset(file) for name, file in asked.items()}
        with files_named(dataset=[data], sweep=[data], **{name: [file] for name, file in asked.items()}):
            page = explorer.explore(loaded[0], **loaded[1])
        page.save(output, force=force)
    if not quiet:
        click.echo(str(output))
    return 0


@click.command("phase-diagram")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, file_okay=False), required=True, help="Folder for the results."
)
@click.option("--alphas", type=click.IntRange(2, 1000), default=25, show_default=True, help="Sample complexities.")
@click.option(
    "--omegas", type=click.IntRange(2, 1000), default=26, show_default=True, help="Weights of the positional part."
)
@click.option(
    "--nodes",
    type=click.IntRange(16),
    help="Sobol points per replicate, a power of two, in the place of lines.",
)
@asked_options
@force_option
@workers_option
@allow_unconverged_option
@quiet_option
def phase_diagram(
    output: Path,
    alphas: int,
    omegas: int,
    nodes: int | None,
    stability: bool,
    identity: bool,
    force: bool,
    workers: int | None,
    allow_unconverged: bool,
    quiet: bool,
) -> int:
    """Compute and draw the paper's phase diagram.

    Writes phase_diagram.nc, fig2.png and fig3.png. If interrupted, the same command goes on where it stopped; if
    finished, it draws again. With --force it computes anew, and replaces what another grid has left there. Exit code 1
    if a point violates exact identities.
    """
    begin = time.monotonic()
    figures = ("fig2.png", "fig3.png")
    data = check_folder(output) / "phase_diagram.nc"
    if output.exists():
        for name in figures:
            # that of a finished file is drawn again, which the sweep lets pass if it is of this grid
            check_figure(output / name, force or data.exists())
    if workers is not None:
        arguments.whole("workers", workers, 1)
    problem = _paper_with(nodes)
    output.mkdir(parents=True, exist_ok=True)
    settings = SolverSettings(tolerance=1e-6, stability=stability, identity=identity)
    alpha, omega = paper_figures.paper_grid(alphas, omegas)
    # what draws takes a second to import, for which nothing waits while the workers solve
    drawing = Timer(_BEGUN, import_module, ("attnphase.figures",))
    drawing.daemon = True
    drawing.start()
    try:
        with interruption_told(lambda: kept_lines(data, "run the same command again to go on")):
            ds = grid.sweep(
                problem=problem,
                alpha=alpha,
                omega=omega,
                settings=settings,
                workers=workers,
                output=data,
                resume="fitting",  # lines of another grid, or of other nodes, stay for the command that made them
                force=force,
                progress=not quiet,
            )
    finally:
        drawing.cancel()
    with progress_line(not quiet, "drawing"):
        for name, draw in zip(figures, (plots.fig2, plots.fig3), strict=True):
            plots.save_figure(draw(ds), output / name)
    # next to the ends of branches a few points do not converge, which the figures show
    code = ended([one for one in outcomes.of_points(ds) if one[0] is ViolatedWarning], allow_unconverged)
    if quiet:
        return code
    pairs = [("points", counts.status_counts(ds, problem))]
    for value in sorted({float(ds["omega"].sel(omega=value, method="nearest")) for value in _OMEGAS_SHOWN}):
        alpha_c = plots.loss_crossing(ds.sel(omega=value))
        pairs.append((f"alpha_c at omega = {value:g}", format_value(alpha_c.alpha, alpha_c.standard_error)))
    pairs.append(("time", f"{time.monotonic() - begin:.0f} s"))
    pairs.append(("files", ", ".join(str(output / name) for name in (data.name, *figures))))
    click.echo(pairs_text(pairs, terminal_width()))
    return code


def _paper_with(nodes: int | None) -> problems.Problem:
    """The paper's problem to a per cent, or with so many Sobol points, of which a refusal speaks as the command."""
    if nodes is None:
        return problems.Problem.paper().with_fields({"integration.standard_error": 1e-2})
    try:
        return problems.Problem.paper().with_fields({"integration.rule": "sobol", "integration.nodes": nodes})
    except ProblemError as error:
        raise ProblemError("nodes", error.message.replace("integration.nodes", "--nodes", 1)) from None
