"""What the run's loss says about kappa, the price of training on an old model.

The loss is taken to fall along some curve over s, the effective progress so far: the
integral of v (1 - c/I) / (1 + kappa (I + d)) over all that was trained, at whatever intervals.
Time and progress are so kept apart: a probe made later, where the loss falls more slowly
anyhow, is not held to be worse for it. With the right kappa the losses lie on one smooth curve;
with a wrong one they bend at each change of the interval.

The curve is any mixture a + sum_j b_j exp(-lambda_j s) with a, b_j >= 0. Power laws
a + b (s + s0)^(-beta) and their sums are such mixtures (Bernstein 1928), so no family has to be
guessed, and a trend of the interval teaches nothing: only going back and forth does. For
each kappa of a grid the mixture is fitted to the whole run by non-negative least squares (Lawson,
Hanson 1974) with Huber's weights (Huber 1964).
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import nnls

from offbeat_scheduler.search.progress import PRIOR_KAPPA_PER_STEP, Terms
from offbeat_scheduler.search.record import Record

PRIOR_SPREAD = 1.0
"""Standard deviation of log kappa before anything is seen."""

DECAYS = np.array([0.0, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0])
"""lambda_j, in units of one over the progress made so far; 0 is the constant a."""

HUBER = 1.5
ROUNDS = 3
MIN_POINTS = 8
"""Fewer losses than this determine no curve."""


class Posterior:
    """A distribution over kappa per mean step, on a logarithmic grid.

    Args:
        centre: the prior's median.
    """

    def __init__(self, centre: float = PRIOR_KAPPA_PER_STEP, spread: float = PRIOR_SPREAD) -> None:
        self.kappa_per_step = centre * np.exp(np.linspace(-3 * spread, 3 * spread, 31))
        self._log = np.log(self.kappa_per_step / centre)
        self._prior = np.exp(-0.5 * (self._log / spread) ** 2)
        self._prior /= self._prior.sum()
        self.weights = self._prior

    @property
    def spread(self) -> float:
        """Standard deviation of log kappa."""
        mean = float(self.weights @ self._log)
        return float(np.sqrt(self.weights @ (self._log - mean) ** 2))

    @property
    def centre(self) -> float:
        """The median-like centre of kappa per step: exp of the mean log."""
        return float(np.exp(self.weights @ np.log(self.kappa_per_step)))

    def update(self, record: Record) -> bool:
        """Take in a run. False, and the prior again, if its losses say nothing: too few, or not falling."""
        likelihood = log_likelihood(record, self.kappa_per_step)
        if likelihood is None or not np.all(np.isfinite(likelihood)):
            self.weights = self._prior
            return False
        weights = self._prior * np.exp(likelihood - likelihood.max())
        self.weights = weights / weights.sum()
        return True

    def progress(self, terms: Terms, intervals: np.ndarray) -> np.ndarray:
        """The mean of P over kappa at each interval: shape (n,), effective steps per second."""
        return self.weights @ self._progress(terms, intervals)

    def worth(self, terms: Terms, intervals: np.ndarray) -> np.ndarray:
        """The mean of log P over kappa, shape (n,): what a choice maximises, as a loss of 10 % counts
        the same whichever kappa is true."""
        return self.weights @ self._log_progress(terms, intervals)

    def regret(self, terms: Terms, intervals: np.ndarray, chosen: int) -> float:
        """How much progress (a share) `intervals[chosen]` is expected to lose to one who knows kappa."""
        log = self._log_progress(terms, intervals)
        return float(self.weights @ (log.max(axis=1) - log[:, chosen]))

    def _progress(self, terms: Terms, intervals: np.ndarray) -> np.ndarray:
        return terms.progress(intervals, self.kappa_per_step * terms.mean_speed)

    def _log_progress(self, terms: Terms, intervals: np.ndarray) -> np.ndarray:
        return np.log(np.maximum(self._progress(terms, intervals), 1e-300))


def log_likelihood(record: Record, kappa_per_step: np.ndarray) -> np.ndarray | None:
    """Log likelihood of a run for each kappa, up to a constant, shape (k,); None if losses say nothing."""
    values, weights = record.values(), record.weights()
    if values.size < MIN_POINTS or not _falling(values):
        return None
    progress = record.progress(kappa_per_step)  # (k, n)
    total = progress[:, -1:]
    if not np.all(total > 0):
        return None
    cost, residuals = _fit(np.exp(-DECAYS * (progress / total)[..., None]), values, weights)
    return -_independent_share(residuals[int(cost.argmin())]) * cost


def _fit(curves: np.ndarray, values: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Fit a non-negative mixture of curves for each kappa.

    Args:
        curves: shape (k, n, curves).
        values, weights: shape (n,).

    Returns:
        Huber's cost in units of the noise, shape (k,), and the residuals, shape (k, n).
    """
    root = np.sqrt(weights)
    noise = _noise(values)
    robust = np.ones(curves.shape[:2])
    for round_ in range(ROUNDS):
        residuals = values - _mix(curves, values, root * np.sqrt(robust))
        if round_ == 0:
            # The noise about the best curve, if that is more than from one loss to the next.
            spread = np.median(np.abs(residuals) * root, axis=1).min() / 0.6745
            noise = max(noise, float(spread), 1e-6 * float(np.abs(values).max()))
        size = np.abs(residuals) * root / noise
        robust = np.minimum(1.0, HUBER / np.maximum(size, 1e-12))
    cost = np.where(size <= HUBER, 0.5 * size**2, HUBER * (size - 0.5 * HUBER))
    return cost.sum(axis=1), residuals


def _mix(curves: np.ndarray, values: np.ndarray, roots: np.ndarray) -> np.ndarray:
    """The best mixture's values, shape (k, n); `roots` are the square roots of the weights, shape (k, n)."""
    q, r = np.linalg.qr(curves * roots[..., None])
    targets = np.einsum("knj,kn->kj", q, values * roots)
    shares = np.array([_non_negative(r[k], targets[k]) for k in range(len(r))])
    return np.einsum("knj,kj->kn", curves, shares)


def _non_negative(matrix: np.ndarray, target: np.ndarray) -> np.ndarray:
    try:
        return nnls(matrix, target)[0]
    except RuntimeError:  # it did not come to an end, as some versions of scipy may not: near enough
        return np.maximum(0.0, np.linalg.lstsq(matrix, target, rcond=None)[0])


def _noise(values: np.ndarray) -> float:
    """Standard deviation of one loss, from second differences: a smooth fall does not count as noise."""
    bend = values[2:] - 2 * values[1:-1] + values[:-2]
    return float(np.median(np.abs(bend)) / 0.6745 / np.sqrt(6.0))


def _falling(values: np.ndarray) -> bool:
    """Does the loss fall: is its later third lower than its earlier third?"""
    third = max(1, values.size // 3)
    return bool(np.median(values[-third:]) < np.median(values[:third]))


def _independent_share(residuals: np.ndarray) -> float:
    """Neighbouring losses err together: the share that counts as independent, in [0.1, 1]."""
    centred = residuals - residuals.mean()
    variance = float(centred @ centred)
    if variance <= 0:
        return 1.0
    correlation = min(0.9, max(0.0, float(centred[1:] @ centred[:-1]) / variance))
    return max(0.1, (1 - correlation) / (1 + correlation))
