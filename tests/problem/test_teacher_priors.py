"""Laws of the entries of the teacher's weights: files, rows of a lasso, and the Bayes-optimal error, by quadrature."""

import itertools
from typing import Any

import numpy as np
import pytest
from models import model
from numpy.typing import NDArray
from scipy import integrate

import attnphase as ap

pytestmark = pytest.mark.filterwarnings("ignore::attnphase.errors.AttnphaseWarning")

Array = NDArray[np.float64]
SETTINGS = ap.SolverSettings(threads=1, stability=False, identity=False)
RADEMACHER: dict[str, Any] = {"teacher.prior": "rademacher"}
SPARSE: dict[str, Any] = {"teacher.prior": "gauss-bernoulli", "teacher.prior_density": 0.23}
SKEWED: dict[str, Any] = {
    "teacher.prior": "atoms",
    "teacher.prior_values": [-0.5, 2.0],
    "teacher.prior_probabilities": [0.8, 0.2],
}
POSITIVE: dict[str, Any] = SKEWED | {"teacher.prior_values": [0.0, 1.4], "teacher.prior_probabilities": [0.7, 0.3]}
PRIORS = {"rademacher": RADEMACHER, "sparse": SPARSE, "skewed": SKEWED, "positive": POSITIVE}
LAWS = {  # probabilities, means and variances of the components of an entry
    "rademacher": ([0.5, 0.5], [-1.0, 1.0], [0.0, 0.0]),
    "sparse": ([0.77, 0.23], [0.0, 0.0], [0.0, 1 / 0.23]),
    "skewed": ([0.8, 0.2], [-0.5, 2.0], [0.0, 0.0]),
    "positive": ([0.7, 0.3], [0.0, 1.4], [0.0, 0.0]),
}
GAMMA = 0.64
ONE = ap.Problem(tokens={"length": 1, "sigma": 0.8}, loss={"kind": "square"}, teacher={"noise": 0.3})


def known(problem: ap.Problem, alpha: Any, **more: Any) -> Any:
    return ap.bayes_optimal(problem, alpha, **{"start": "uninformed", "progress": False, **more})


def test_atoms_come_from_a_file_and_stay_in_the_problem(tmp_path: Any):
    (tmp_path / "law.csv").write_text("probability,value\n.8,-.5\n.2,2\n")
    path = tmp_path / "problem.toml"
    path.write_text(
        'tokens = {length = 1, sigma = 0.8}\nloss = {kind = "square"}\n'
        'teacher = {noise = 0.3, prior = "atoms", prior_values = "law.csv"}\n'
    )
    skewed = ap.load_problem(path)
    assert skewed == ONE.with_fields(SKEWED) == ap.Problem.from_toml(skewed.to_toml())
    named = {"teacher.prior": "atoms", "teacher.prior_values": str(tmp_path / "law.csv")}
    assert skewed.with_fields(named | {"teacher.prior_probabilities": None}) == skewed
    assert ONE.with_fields(SPARSE).with_fields(RADEMACHER) == ONE.with_fields(RADEMACHER)


def soft_thresholds(name: str, gamma: float, strength: float, q_hat: float, theta_hat: float, V_hat: float) -> Array:
    """q, theta, V and the share of nonzero weights of the lasso in one column, by quadrature over the source."""
    total = np.zeros(4)
    for p, m, v in zip(*LAWS[name], strict=True):
        deviation = np.sqrt(gamma * q_hat + (gamma * theta_hat) ** 2 * v)
        gain = gamma * theta_hat * v / deviation**2

        def of(b: float, p: float = p, m: float = m, deviation: float = deviation, gain: float = gain) -> Array:
            z = (b - gamma * theta_hat * m) / deviation
            w = np.sign(b) * max(abs(b) - strength, 0) / (gamma * V_hat)
            density = p * np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi) / deviation
            # a row's response is 1 / (gamma V_hat) where it is not zero
            parts = gamma * w * w, gamma * w * (m + gain * deviation * z), (w != 0) / V_hat, float(w != 0)
            return density * np.array(parts)

        for low, high in itertools.pairwise([-30, -strength, strength, 30]):
            total += integrate.quad_vec(of, low, high, epsabs=1e-12, epsrel=1e-11)[0]
    return total


LEVELS = {"kind": "two-level", "variances": [0.3, 0.9], "fraction": 0.4}


@pytest.mark.parametrize("name", PRIORS)
def test_rows_of_a_lasso_are_those_of_quadrature(name: str):
    """At the conjugates of a fixed point, summed over the atoms; a formula is the same regulariser."""
    base = model("square", {"teacher.noise": 0.3}).with_fields({"tokens.spectrum": LEVELS} | PRIORS[name])
    lasso = base.with_fields({"regularizer.kind": "lasso", "regularizer.strength": 0.17})
    formula = base.with_fields({"regularizer.kind": "expression", "regularizer.expression": "0.17*abs(w)"})
    ds, again = (ap.solve(one, 1.3, "semantic", settings=SETTINGS) for one in (lasso, formula))
    hats = [ds[hat].item() for hat in ("q_hat", "theta_hat", "V_hat")]
    rows = sum(w * soft_thresholds(name, gamma, 0.17, *hats) for w, gamma in ((0.4, 0.3), (0.6, 0.9)))
    found = [ds[quantity].item() for quantity in ("q", "theta", "V", "density")]
    np.testing.assert_allclose(found, rows, rtol=1e-6)
    for quantity in ("q", "theta", "V", "training_loss"):
        error = np.hypot(ds[f"{quantity}_stderr"].item(), again[f"{quantity}_stderr"].item())
        assert abs(again[quantity].item() - ds[quantity].item()) < 4 * error + 1e-6, quantity


def row_by_quadrature(name: str, noise: float) -> Array:
    """Mean variance of an entry given ``noise w + sqrt(noise) z``, and the information, by SciPy over the source."""
    p, m, v = map(np.array, LAWS[name])
    deviations = np.sqrt(1 + v * noise)

    def of(y: float) -> Array:
        z = (y - np.sqrt(noise) * m) / deviations
        densities = p * np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi) / deviations
        total = densities.sum()
        if total < 1e-300:
            return np.zeros(2)
        r, b = densities / total, np.sqrt(noise) * y
        means, spreads = (m + v * b) / (1 + v * noise), v / (1 + v * noise)
        variance = r @ (spreads + (means - r @ means) ** 2)
        return total * np.array([variance, -np.log(total) - (1 + np.log(2 * np.pi)) / 2])

    reach = np.sqrt(noise) * np.abs(m).max() + 13 * deviations.max()
    ends = np.unique(np.concatenate([np.linspace(-reach, reach, 61), np.linspace(-9, 9, 61)]))
    parts = [integrate.quad_vec(of, a, b, epsabs=1e-15, epsrel=1e-10)[0] for a, b in itertools.pairwise(ends)]
    return np.sum(parts, axis=0)


@pytest.mark.parametrize(("alpha", "noise"), [(0.02, 0.9), (0.61, 0.34), (1.9, 0.03)])
@pytest.mark.parametrize("name", PRIORS)
def test_linear_labels_against_one_step_of_the_equations(name: str, alpha: float, noise: float):
    """``V = rho E Var(w | B)`` at ``S = rho alpha/(noise + V)``; of signs this is binary CDMA (Tanaka 2002).

    The free entropy is that of the labels and ``S V/(2 rho)``, less the information on the weights.
    """
    ds = known(ONE.with_fields(PRIORS[name] | {"teacher.noise": noise}), alpha)
    V = ds.V.item()
    S = GAMMA * alpha / (noise + V)
    variance, information = row_by_quadrature(name, S)
    # also where V is 1e-9
    assert pytest.approx(GAMMA * variance, rel=1e-6) == V
    entropy = S * V / GAMMA / 2 - information - alpha / 2 * (np.log(2 * np.pi * (noise + V)) + 1)
    assert ds.free_entropy.item() == pytest.approx(entropy, rel=1e-7)


def test_the_binary_perceptron():
    """Györgyi, PRA 41 (1990) 7097, and Barbier et al., PNAS 116 (2019) 5451: 1.245 and 1.493; then all is known."""
    ds = known(model("logistic", RADEMACHER), [1.4, 1.6], start=("uninformed", "informed"), thresholds=True)
    assert ds.information_theoretic.item() == pytest.approx(1.245, abs=1e-3)
    assert ds.algorithmic.item() == ds.perfect_recovery.item() == pytest.approx(1.493, abs=1e-3)
    assert ds.recovered.to_numpy().tolist() == [[0, 1], [1, 1]]
    assert ds.test_error.sel(start="informed").to_numpy() == pytest.approx(0)
    assert ds.free_entropy.sel(start="informed").to_numpy() == pytest.approx(-np.log(2))


def test_a_sparse_teacher_without_noise_needs_as_many_labels_as_weights():
    ds = known(ONE.with_fields(SPARSE | {"teacher.noise": 0.0}), 0.7, channel="absolute", thresholds=True)
    assert ds.information_theoretic.item() == pytest.approx(0.23, abs=2e-3)
    assert ds.weak_recovery.item() == pytest.approx(0.5, rel=1e-9)  # of the first two moments alone


@pytest.mark.parametrize(
    ("label", "same"),
    [
        ("abs(sign(k - 0.5) + sign(k + 0.5))", "sign(k**2 - 0.25)"),
        ("(sign(k - 0.5) + sign(k + 0.3))**2", "sign((k - 0.5)*(k + 0.3))"),
    ],
)
def test_labels_that_are_equal_between_other_jumps_are_one_label(label: str, same: str):
    problem = ONE.with_fields({"teacher.noise": 0.0})
    one, other = (known(problem, 1.7, channel=text, start="informed") for text in (label, same))
    for name in ("overlap", "free_entropy", "mutual_information", "test_error"):
        assert one[name].item() == pytest.approx(other[name].item(), rel=1e-9), name
