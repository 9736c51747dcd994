"""Ridge regression of infinitely many dimensions in closed form."""

from collections.abc import Sequence

import numpy as np
from scipy.optimize import root_scalar


def ridge_regression(
    alpha: float,
    strength: float,
    noise: float = 0.0,
    gamma: Sequence[float] = (1.0,),
    weights: Sequence[float] = (1.0,),
) -> dict[str, float]:
    """What is known of ``n = alpha d`` samples with covariates of variances gamma and labels ``w_star.x + noise``.

    The risk is ``sum_mu (y - w.x)^2/2 + lambda/2 |w|^2``.  The proximal point is linear, ``(omega + V y)/(1 + V)``, so
    that ``V_hat = theta_hat = alpha/(1 + V)`` and ``q_hat = alpha e/(1 + V)^2``, with the error ``e`` of noisy labels.
    Then ``V = E gamma/(lambda + gamma alpha/(1 + V))``, and q is linear in e.
    """
    nu, g = np.asarray(weights), np.asarray(gamma)
    rho = nu @ g
    if len(g) == 1:
        b = strength + rho * alpha - rho
        V = (np.sqrt(b**2 + 4 * strength * rho) - b) / (2 * strength)
    else:
        V = root_scalar(lambda V: V - nu @ (g / (strength + g * alpha / (1 + V))), bracket=(1e-9, 1e9), xtol=1e-14).root
    hat = alpha / (1 + V)
    R = 1 / (strength + g * hat)
    theta, signal, scatter = nu @ (g**2 * hat * R), nu @ (g**3 * hat**2 * R**2), nu @ (g**2 * R**2)
    e = (rho + noise - 2 * theta + signal) / (1 - scatter * alpha / (1 + V) ** 2)
    q_hat = alpha * e / (1 + V) ** 2
    norm = nu @ (R**2 * (g * q_hat + g**2 * hat**2))
    loss = q_hat / 2 + strength * norm / 2
    values = {"q": signal + scatter * q_hat, "V": V, "theta": theta, "q_hat": q_hat, "V_hat": hat, "theta_hat": hat}
    values |= {"test_error": e - noise, "weight_norm": norm, "training_loss": loss}
    return {name: float(value) for name, value in values.items()}
