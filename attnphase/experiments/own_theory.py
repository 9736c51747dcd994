"""The dynamics in the limit of high dimension, from what one run at finite d starts with.

A run's teacher, encodings and weights have overlaps that scatter by 1/sqrt(d) around those of the limit.  Followed from
these, what is left between run and theory is the noise of its samples, and corrections of the order 1/d.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attnphase.arrays import Array
from attnphase.experiments.data import draw_geometry
from attnphase.experiments.starts import projections_of, sized_weights
from attnphase.problem import Problem
from attnphase.spectrum.measure import Spectrum
from attnphase.state_evolution.sizes import Sizes
from attnphase.theories.sgd_flow.rates import Dynamics
from attnphase.theories.sgd_flow.settings import FlowSettings
from attnphase.theories.sgd_flow.slopes import first_rule, gauges_of, is_smooth, system_of
from attnphase.theories.sgd_flow.trajectory import integrated, measured

__all__ = ["own_trajectory"]


def own_trajectory(
    problem: Problem, start: Sizes, settings: FlowSettings, times: Array, dimension: int, seed: int, run: int
) -> dict[str, Array]:
    """What the theory says of one run, at times (T,): ``q``, ``m``, ``theta`` and the losses, (T, ...).

    Parameters
    ----------
    problem : Problem
    start : Sizes
    settings : FlowSettings
        With ``until`` at the last of the times.
    times : (T,) array
    dimension, seed, run : int
        Of the run.
    """
    geometry = draw_geometry(problem, dimension, seed, run)
    weights = sized_weights(problem, geometry, start, seed, run)
    projections = projections_of(problem, geometry)
    gamma, atom = np.unique(geometry.gamma, axis=1, return_inverse=True)
    counts = np.bincount(atom.ravel(), minlength=gamma.shape[1])
    moments, signals, scatters = [], [], []
    for a, count in enumerate(counts):
        here = atom.ravel() == a
        w, x = weights[here], projections[here]
        second, cross = x.T @ x / count, w.T @ x / count
        signal = cross @ np.linalg.pinv(second, rcond=1e-10, hermitian=True)
        rest = w.T @ w / count - signal @ cross.T
        moments.append(second)
        signals.append(signal)
        scatters.append((rest + rest.T) / 2)
    spectrum = Spectrum(
        counts / dimension,
        gamma,
        np.zeros((len(counts), projections.shape[1])),
        np.stack(moments),
        geometry.means @ geometry.teacher / dimension,
    )
    system = replace(system_of(problem), spectrum=spectrum)
    rules, smooth = system.refinement(settings.max_nodes), is_smooth(system)
    rule = first_rule(rules, smooth)
    dynamics = Dynamics.of(system, ([gauge.rule for gauge in gauges_of(rules, rule, smooth)] or [rule])[0], settings)
    state = dynamics.rows.start(np.stack(signals), np.stack(scatters))
    return measured(dynamics, integrated(dynamics, dynamics.rows.clipped(state), times).states)
