"""What the run's loss says about kappa, the price of training on an old model.

The loss is taken to fall along some curve over s, the effective progress so far: the
integral of v (1 - c/I) / (1 + kappa (I + d)) over all that was trained, at whatever intervals.
Time and progress are so kept apart: a probe made later, where the loss falls more slowly
anyhow, is not held to be worse for it. With the right kappa the losses lie on one smooth curve;
with a wrong one they bend at each change of the interval.

The curve is any mixture a + sum_j b_j exp(-lambda_j s) with a, b_j >= 0. Power laws
a + b (s + s0)^(-beta) and their sums are such mixtures (Bernstein 1928), so no family has to be
guessed, and a trend of the interval teaches nothing: only going back and forth does. Beside the
curve stands what an interval adds to the loss at once, c times the age of the models that updates
are made on: where local updates drift apart, a long interval holds the loss up whatever progress
is made. For each kappa of a grid the mixture and c are fitted to the whole run by non-negative
least squares (Lawson, Hanson 1974) with Huber's weights (Huber 1964).
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import nnls

from offbeat_scheduler.search.progress import PRIOR_KAPPA_PER_STEP, Terms
from offbeat_scheduler.search.record import Record

PRIOR_SPREAD = 1.5
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
        self.kappa_per_step = centre * np.exp(np.linspace(-3 * spread, 3 * spread, 41))
        self._log = np.log(self.kappa_per_step / centre)
        self._prior = np.exp(-0.5 * (self._log / spread) ** 2)
        self._prior /= self._prior.sum()
        self.weights = self._prior
        self.fall = 0.0  # of the loss, yet to come when `level` was found; 0: unknown
        self.level = np.zeros_like(self._prior)  # for each kappa: loss per step of age, shape (41,)

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
        found = explain(record, self.kappa_per_step)
        if found is None or not np.all(np.isfinite(found[0])):
            self.weights, self.level = self._prior, np.zeros_like(self._prior)
            return False
        likelihood, self.level = found
        weights = self._prior * np.exp(likelihood - likelihood.max())
        self.weights = weights / weights.sum()
        return True

    def progress(self, terms: Terms, intervals: np.ndarray) -> np.ndarray:
        """The mean of P over kappa at each interval: shape (n,), effective steps per second."""
        return self.weights @ self._progress(terms, intervals)

    def worth(self, terms: Terms, intervals: np.ndarray, among: np.ndarray | None = None) -> np.ndarray:
        """What a choice maximises, shape (n,): minus the root mean square of what an interval loses to
        the best one of `among` (default: of `intervals`), as a share of progress, over kappa.

        The square, so that no kappa that may be true costs much: a mean would risk a lot where kappa is
        large for a little where it is small.
        """
        log = self._log_worth(terms, intervals)
        best = log if among is None else self._log_worth(terms, among)
        lost = np.maximum(0.0, best.max(axis=1, keepdims=True) - log)
        return -np.sqrt(self.weights @ lost**2)

    def regret(self, terms: Terms, intervals: np.ndarray, chosen: int) -> float:
        """How much progress (a share) `intervals[chosen]` is expected to lose to one who knows kappa."""
        log = self._log_worth(terms, intervals)
        return float(self.weights @ (log.max(axis=1) - log[:, chosen]))

    def _progress(self, terms: Terms, intervals: np.ndarray) -> np.ndarray:
        return terms.progress(intervals, self.kappa_per_step * terms.mean_speed)

    def _log_worth(self, terms: Terms, intervals: np.ndarray) -> np.ndarray:
        """log P for each kappa, shape (k, n), less what the interval adds to the loss at once, as a share
        of the fall that is yet to come: that share of the time it takes to make good."""
        age = terms.mean_speed * (np.asarray(intervals) + terms.mean_delay)
        added = self.level[:, None] * age / self.fall if self.fall > 0 else 0.0
        return np.log(np.maximum(self._progress(terms, intervals), 1e-300)) - added


def explain(record: Record, kappa_per_step: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """How well each kappa explains a run; None if its losses say nothing.

    Returns:
        Log likelihood up to a constant, shape (k,), and the loss that a step of age adds, shape (k,):
        the estimate, lowered as far as it may be chance.
    """
    values = record.values()
    if values.size < MIN_POINTS or not _falling(values):
        return None
    progress = record.progress(kappa_per_step)  # (k, n)
    total = progress[:, -1:]
    if not np.all(total > 0):
        return None
    # Errors grow with the loss: each counts in units of its own size, and the steep beginning not for all.
    weights = record.weights() * (np.median(np.abs(values)) / np.maximum(np.abs(values), 1e-12)) ** 2
    curves = np.exp(-DECAYS * (progress / total)[..., None])
    ages, at = record.ages(), np.array([point.made_s for point in record.points])
    column = np.broadcast_to((ages / ages.max())[:, None], (*progress.shape, 1))
    cost, residuals, shares = _fit(np.concatenate([curves, column], axis=-1), values, weights, at)
    independent = _independent_share(residuals[int(cost.argmin())])
    without, _, _ = _fit(curves, values, weights, at)
    gain = np.maximum(0.0, independent * (without - cost))
    return -independent * cost, shares[:, -1] / ages.max() * gain / (gain + 1.0)


def _fit(
    curves: np.ndarray, values: np.ndarray, weights: np.ndarray, at: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Fit a non-negative mixture of curves for each kappa.

    Args:
        curves: shape (k, n, curves).
        values, weights: shape (n,).
        at: of the losses, shape (n,): seconds.

    Returns:
        Huber's cost in units of the noise, shape (k,), the residuals, shape (k, n), and the curves'
        shares, shape (k, curves).
    """
    root = np.sqrt(weights)
    noise = _noise(values, at, root)
    robust = np.ones(curves.shape[:2])
    for round_ in range(ROUNDS):
        shares = _mix(curves, values, root * np.sqrt(robust))
        residuals = values - np.einsum("knj,kj->kn", curves, shares)
        if round_ == 0:
            # The noise about the best curve, if that is more than from one loss to the next.
            spread = np.median(np.abs(residuals) * root, axis=1).min() / 0.6745
            noise = max(noise, float(spread), 1e-6 * float(np.abs(values).max()))
        size = np.abs(residuals) * root / noise
        robust = np.minimum(1.0, HUBER / np.maximum(size, 1e-12))
    cost = np.where(size <= HUBER, 0.5 * size**2, HUBER * (size - 0.5 * HUBER))
    return cost.sum(axis=1), residuals, shares


def _mix(curves: np.ndarray, values: np.ndarray, roots: np.ndarray) -> np.ndarray:
    """The best mixture's shares, shape (k, curves); `roots`: square roots of the weights, shape (k, n)."""
    q, r = np.linalg.qr(curves * roots[..., None])
    targets = np.einsum("knj,kn->kj", q, values * roots)
    return np.array([_non_negative(r[k], targets[k]) for k in range(len(r))])


def _non_negative(matrix: np.ndarray, target: np.ndarray) -> np.ndarray:
    try:
        return nnls(matrix, target)[0]
    except RuntimeError:  # it did not come to an end, as some versions of scipy may not: near enough
        return np.maximum(0.0, np.linalg.lstsq(matrix, target, rcond=None)[0])


def _noise(values: np.ndarray, at: np.ndarray, roots: np.ndarray) -> float:
    """Standard deviation of one loss: by how much it misses the line through its neighbours, whatever
    their distances, so that a smooth fall does not count as noise."""
    apart = at[2:] - at[:-2]
    late = np.where(apart > 0, (at[1:-1] - at[:-2]) / np.where(apart > 0, apart, 1.0), 0.5)
    misses = values[1:-1] - (1 - late) * values[:-2] - late * values[2:]
    return float(np.median(np.abs(misses) * roots[1:-1] / np.sqrt(1 + (1 - late) ** 2 + late**2)) / 0.6745)


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
