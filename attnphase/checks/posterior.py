"""Bayes-optimal message passing beside its theory: both as `attnphase.checks.comparison` takes branches and runs."""

from __future__ import annotations

import xarray as xr

from attnphase.arrays import Array
from attnphase.errors import CompareError

__all__ = ["RunsOwnFrame", "branches_of_limit"]


class RunsOwnFrame:
    """Runs are in the teacher's frame already, as far as labels allow."""

    scalars = ("overlap", "test_error", "linear_test_error")
    overlaps = ("q", "V", "theta")
    left_out: tuple[str, ...] = ()

    def aligned(self, point: xr.Dataset, runs: xr.Dataset) -> dict[str, Array]:
        """Overlaps of every run, (S, ...) like the dataset's."""
        return {name: runs[name].transpose("seed", *point[name].dims).to_numpy() for name in self.overlaps}


def branches_of_limit(theory: xr.Dataset, experiment: xr.Dataset) -> xr.Dataset:
    """The limit with its starts as branches, and the overlap with the teacher, which is q (Nishimori), as theta.

    Raises
    ------
    CompareError
        The two observe different things.
    """
    channels = [ds.attrs.get("channel", "what the problem says") for ds in (theory, experiment)]
    if channels[0] != channels[1]:
        raise CompareError(
            f"theory and experiment are of different channels: {channels[0]} in the theory and {channels[1]} in the"
            " experiment."
        )
    theory = theory.rename({name: "branch" for name in ("start",) if name in theory.coords})
    named = {"latex": r"\theta", "long_name": "overlap of the posterior's mean with the teacher", "units": "1"}
    theta = {"theta": theory["q"].assign_attrs(named), "theta_stderr": theory["q_stderr"]}
    return theory.assign(theta)
