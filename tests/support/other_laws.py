"""What tests of samplers, of densities and of a user's own laws of k have in common."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np

from attnphase.integration.lines import LineOrders
from attnphase.integration.rules import Rule, lines, sobol
from attnphase.problem.problem import Problem
from attnphase.state_evolution.channel import Channel
from attnphase.state_evolution.map import StateEvolution
from attnphase.state_evolution.overlaps import Overlaps
from attnphase.state_evolution.sample_law import SampleLaw
from attnphase.state_evolution.sample_symmetries import merged
from attnphase.state_evolution.system import System


@dataclass(frozen=True, eq=False)
class Tilted(SampleLaw):
    """``rho^-1/2 (k - kbar) = z + bend (z^2 - 1)`` z weighted by ``(1 + tilt z_0)^2 / (1 + tilt^2)``."""

    gaussian: ClassVar[bool] = False
    tilts: tuple[float, ...] = ()
    bend: float = 0.0

    def drawn(self, configuration: int, zeta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        tilt = self.tilts[configuration]
        return zeta + self.bend * (zeta**2 - 1), (1 + tilt * zeta[:, 0, 0]) ** 2 / (1 + tilt**2)

    def unchanged(self, order: Sequence[int], turn: np.ndarray) -> bool:
        return list(order) == list(range(len(order))) and np.array_equal(turn, np.eye(len(turn)))

    def mean(self, configuration: int, power: int) -> float:
        """Of a power of the first of the scaled fields, by Gauss-Hermite nodes, which have polynomials exactly."""
        z, w = np.polynomial.hermite_e.hermegauss(12)
        scaled, shares = self.drawn(configuration, z[:, None, None])
        return float((w / w.sum() * shares) @ scaled[:, 0, 0] ** power)


def tilted(problem: Problem, tilts: tuple[float, ...], bend: float) -> tuple[System, Tilted]:
    system = System.of(problem)
    known = {one.name: getattr(system.sample_law, one.name) for one in fields(SampleLaw)}
    law = Tilted(**known, tilts=tilts, bend=bend)
    return replace(system, own_law=law), law


def rule_of(name: str, system: System, latent: int, points: int, across: int = 4) -> Rule:
    length, kernels = system.kernels.length, system.kernels
    student = length * kernels.columns
    dimensions = student + length * kernels.label_normals
    if name == "lines":
        return lines(dimensions, student, LineOrders((latent,) * length, (across,) * (length - 1), defect=1e-7))
    return sobol(dimensions, student, system.reflects, points, 4, 3)


def evaluated(system: System, rule: Rule, alpha: float, overlaps: Overlaps) -> dict[str, np.ndarray]:
    map_ = StateEvolution(Channel(system, rule), alpha, system.sector_of(overlaps))
    map_.lift = True
    assert map_(map_.pack(overlaps)) is not None
    assert map_.last is not None
    hats, loss = map_.last.conjugates.mean(), map_.channel.loss_at_omega(overlaps)
    found = {name: np.ravel(getattr(hats, name)) for name in ("q_hat", "V_hat", "m_hat", "theta_hat")}
    return found | {"envelope": np.ravel(map_.last.envelope.mean()), "loss": np.ravel(loss.mean())}


def columns(*values: Sequence[float]) -> Overlaps:
    return Overlaps(*(np.array(one, dtype=float).reshape(-1, 1, 1) for one in values))


def configurations_left(key: str, formulas: Iterable[str]) -> Iterator[int]:
    """How many of two configurations of clusters remain, for a law of k by each of some formulas."""
    for formula in formulas:
        tokens: dict[str, Any] = {"kind": "mixture", "length": 2, "clusters": [{"sigma": 0.8}, {"sigma": 1.1}]}
        tokens |= {"law": {"kind": "single-location"}, key: formula}
        loss = {"kind": "expression", "expression": "(h[0, 0] + h[1, 0] - c @ k[:, 0])**2/2"}
        system = System.of(Problem.from_dict({"tokens": tokens, "positions": {"kind": "none"}, "loss": loss}))
        group = [(list(order), A, B, C) for order, A, B, C in system.symmetries]
        yield len(merged(system, group).sample_law.probabilities)
