"""The command line: a file for each group of commands, put together here.

Everything heavy is loaded when a command first uses it, so that ``--help`` is quick.  Results go to standard output or
a file, everything else to standard error.

Every command checks in one order, so that a refusal is quick: options, then the output, then the problem, and only then
what takes long to load.
"""

from __future__ import annotations

from attnphase.cli.bayes_optimal import bayes_optimal
from attnphase.cli.curves import follow, solutions
from attnphase.cli.figures import explore, figure, phase_diagram
from attnphase.cli.histogram import histogram
from attnphase.cli.one_rsb import one_rsb
from attnphase.cli.problems import check, derive, init
from attnphase.cli.program import main
from attnphase.cli.sgd_flow import basins, sgd_flow, stationary
from attnphase.cli.theory import solve, sweep, thresholds
from attnphase.cli.training import compare, experiment, simulate
from attnphase.cli.tuning import tune

__all__ = ["main"]

for command in (
    init,
    derive,
    check,
    solve,
    sweep,
    thresholds,
    follow,
    solutions,
    tune,
    sgd_flow,
    stationary,
    basins,
    one_rsb,
    bayes_optimal,
    simulate,
    experiment,
    compare,
    histogram,
    figure,
    explore,
    phase_diagram,
):
    main.add_command(command)

if __name__ == "__main__":
    main(prog_name="attnphase")
