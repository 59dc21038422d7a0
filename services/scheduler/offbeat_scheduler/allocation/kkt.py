"""Is a solution of the relaxed problem stationary? The Karush-Kuhn-Tucker conditions, by their residuals.

With multipliers lambda_kl >= 0 of tau_k - tau_l <= z, alpha_k of t_k = T, omega of sum d_k = d, and nu_k,
mu_k >= 0 of the lower and the upper bound, the conditions are

    sum of lambda_kl = 1                                                 (z)
    p_k + alpha_k C2_k d_k = 0,   p_k = sum_l (lambda_kl - lambda_lk)       (tau_k)
    alpha_k (C2_k tau_k + C1_k) + omega + mu_k - nu_k = 0                   (d_k)

and each multiplier is 0 where its inequality is not tight. lambda_kl can differ from 0 only where k has the
most updates and l the fewest: p_k is positive for some with the most, negative for some with the fewest, and
sums to 1 and to -1. Eliminating alpha_k leaves

    p_k s_k = omega + mu_k - nu_k,   s_k = -d tau_k / d d_k = (C2_k tau_k + C1_k) / (C2_k d_k) > 0

which is linear in the multipliers, so that those that violate it least are a linear program. The source
solves (tau_k) and (d_k) for

    d_k = -p_k / (alpha_k C2_k)      tau_k = -(omega + mu_k - nu_k + alpha_k C1_k) / (alpha_k C2_k)

Without binding bounds all learners make the same number of updates, z = 0, and alpha_k = p_k = omega = 0:
both are 0/0. They can confirm a solution, where bounds bind, and can't find one.

With an energy limit, C2, C1 and s_k are those of the budget that a learner uses up.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.optimize import linprog

from offbeat_scheduler.allocation.limits import Limits
from offbeat_scheduler.allocation.problem import Floats, Problem

TIGHT = 1e-7
"""Relative: a bound that is missed by less is met."""


@dataclass(frozen=True)
class Residuals:
    """By how much a point violates each condition, relative to its size; all 0 at the optimum.

    Attributes:
        full: |t_k / T - 1|, the largest; with an energy limit of the budget that is used up.
        total: |sum d_k / d - 1|.
        bounds: the largest part of max_k or min_k by which d_k lies outside.
        stationary: the largest violation of p_k = (omega + mu_k - nu_k) / s_k by the best multipliers; p
            sums to 1 on the side of the most updates.
        flow: p, (K,).
        omega: the multiplier of the sum.
        alpha: the multipliers of the full cycle, (K,), in updates per second (or joule).
        upper, lower: mu and nu, (K,).
    """

    full: float
    total: float
    bounds: float
    stationary: float
    flow: Floats
    omega: float
    alpha: Floats
    upper: Floats
    lower: Floats

    @property
    def worst(self) -> float:
        return max(self.full, self.total, self.bounds, self.stationary)


def residuals(problem: Problem, tau: Floats, samples: Floats) -> Residuals:
    """Of a point of the relaxed problem: tau and samples of shape (K,), each above 0."""
    per_update, per_sample, used = _binding(Limits.of(problem), tau, samples)
    falls = (per_update * tau + per_sample) / (per_update * samples)
    at_low = samples <= problem.min_samples * (1 + TIGHT)
    at_high = samples >= problem.max_samples * (1 - TIGHT)
    spread = max(float(tau.max()), 1.0) * TIGHT
    most, fewest = tau >= tau.max() - spread, tau <= tau.min() + spread
    violated, flow, omega, upper, lower = _multipliers(falls, most, fewest, at_low, at_high)
    outside = np.maximum(problem.min_samples - samples, samples - problem.max_samples) / problem.max_samples
    return Residuals(
        full=float(np.abs(used - 1).max()),
        total=abs(float(samples.sum()) / problem.samples - 1),
        bounds=max(0.0, float(outside.max())),
        stationary=violated,
        flow=flow,
        omega=omega,
        alpha=-flow / (per_update * samples),
        upper=upper,
        lower=lower,
    )


def _binding(limits: Limits, tau: Floats, samples: Floats) -> tuple[Floats, Floats, Floats]:
    """Per update and per sample of the budget that each learner uses most of, and the share that it uses."""
    shares = np.array([budget.use(tau, samples) / budget.limit for budget in limits.budgets])
    which, learners = shares.argmax(axis=0), np.arange(limits.learners)
    per_update = np.array([budget.per_update for budget in limits.budgets])[which, learners]
    per_sample = np.array([budget.per_sample for budget in limits.budgets])[which, learners]
    return per_update, per_sample, shares[which, learners]


def _multipliers(
    falls: Floats,
    most: npt.NDArray[np.bool_],
    fewest: npt.NDArray[np.bool_],
    at_low: npt.NDArray[np.bool_],
    at_high: npt.NDArray[np.bool_],
) -> tuple[float, Floats, float, Floats, Floats]:
    """Those that violate p_k s_k = omega + mu_k - nu_k least: (violation, p, omega, mu, nu).

    Variables of the linear program: what p has on the side of the most updates, on that of the fewest, mu,
    nu, omega, the violation.
    """
    count = len(falls)
    one, scale = sparse.identity(count, format="csr"), sparse.diags(1 / falls)
    each = sparse.hstack([one, -one, -scale, scale, sparse.csr_matrix((-1 / falls)[:, None])])
    slack = sparse.csr_matrix(np.ones((count, 1)))
    sides = sparse.csr_matrix(np.kron(np.eye(2, 4), np.ones(count)))
    free = (None, None)
    sides = sparse.hstack([sides, sparse.csr_matrix((2, 2))])
    found = linprog(
        np.append(np.zeros(4 * count + 1), 1.0),
        A_ub=sparse.vstack([sparse.hstack([each, -slack]), sparse.hstack([-each, -slack])]),
        b_ub=np.zeros(2 * count),
        A_eq=sides,
        b_eq=np.ones(2),
        bounds=[(0, None if may else 0) for may in (*most, *fewest, *at_high, *at_low)] + [free, (0, None)],
        method="highs",
    )
    parts = found.x[: 4 * count].reshape(4, count)
    return float(found.x[-1]), parts[0] - parts[1], float(found.x[-2]), parts[2], parts[3]
