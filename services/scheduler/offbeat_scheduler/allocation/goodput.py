"""The batch of each device inside ADSP's commit interval, by goodput.

A local update of b samples takes t(b) = alpha + beta b seconds on a device, and makes as much progress as

    gain(b) = (b / b0) (noise + b0) / (noise + b)

updates of b0 samples if its learning rate is gain(b) times theirs; noise = tr(Sigma)/|G|^2 is the gradient
noise scale (AdaScale: Johnson et al., ICML 2020; the goodput of Pollux: Qiao et al., OSDI 2021). gain is
b / b0, the linear rule, where single gradients are mostly noise, and ever less beyond that. Goodput is
samples per second times progress per sample, so up to a constant it is gain(b) / t(b). It rises up to
sqrt(noise alpha / beta) and falls from there: without a fixed part alpha small batches are best, and where
the step's time hardly grows with the batch, large ones.

*Ours*: the learning rate's factor has a cap, 1 by default. A rate that was tuned is near the largest stable
one, and then a larger batch does more at the same rate than at a larger one (`docs/adsp.md`).

All functions take arrays of shape (devices,).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

MOST_WINDOWS = 400
"""So many ranges of tau are compared at most."""


@dataclass(frozen=True)
class Costs:
    """What local updates take on each device: t(b) = (fixed + b) * sample_s, shape (devices,) each.

    Args:
        fixed: alpha / beta, samples that the fixed part weighs.
        sample_s: beta, seconds per sample.
        least, most: bounds of the batch, whole; `most` is at least `least`.
    """

    fixed: np.ndarray
    sample_s: np.ndarray
    least: np.ndarray
    most: np.ndarray

    def seconds(self, batch: np.ndarray) -> np.ndarray:
        return (self.fixed + batch) * self.sample_s

    def batch_in(self, seconds: float) -> np.ndarray:
        """The batch, not whole, of an update that takes so long."""
        return seconds / self.sample_s - self.fixed


@dataclass(frozen=True)
class Rule:
    """How progress goes with the batch.

    Args:
        base: b0, the run's batch.
        noise: gradient noise scale, samples, finite.
        cap: of the learning rate's factor, at least 1.
    """

    base: int
    noise: float
    cap: float

    def gain(self, batch: np.ndarray) -> np.ndarray:
        """What a local update is worth, in updates of b0 samples."""
        return batch / self.base * (self.noise + self.base) / (self.noise + batch)

    def rate(self, batch: np.ndarray) -> np.ndarray:
        """The learning rate's factor."""
        return np.minimum(self.gain(batch), self.cap)


def best(costs: Costs, rule: Rule) -> np.ndarray:
    """Each device's batch of the highest goodput within its bounds: int64, shape (devices,)."""
    return _nearest(_wanted(costs, rule), costs, rule).astype(np.int64)


def goodput(costs: Costs, rule: Rule, batch: np.ndarray) -> np.ndarray:
    """Updates of b0 samples per second that a batch is worth, shape (devices,)."""
    return rule.gain(batch) / costs.seconds(batch)


def within(costs: Costs, rule: Rule, interval_s: float, max_staleness: int) -> np.ndarray:
    """Batches with which the devices' updates per interval differ by no more than `max_staleness`.

    tau = interval / t(b) falls with b, so a range [a, a + z] of tau is a range of batches on each device,
    and goodput rises and falls once: the best batch of the range is `best`'s, brought into it. Of all
    a the one of the highest total goodput is taken; where no a is kept to by all, the one that is
    broken least.

    Returns:
        int64, shape (devices,).
    """
    free, low, high = _wanted(costs, rule), costs.least, costs.most
    tau = [interval_s / costs.seconds(batch) for batch in (low, high, free)]
    # Where the best a is, some device is at an end of its range, or at its free optimum.
    ends = [tau[1], tau[0] - max_staleness, tau[2], tau[2] - max_staleness]
    windows = np.unique(np.maximum(np.concatenate(ends), 1e-9))
    if windows.size > MOST_WINDOWS:
        windows = np.quantile(windows, np.linspace(0, 1, MOST_WINDOWS))
    whole = _nearest(free, costs, rule)
    found: tuple[float, float, np.ndarray] | None = None
    for a in windows.tolist():
        smallest = np.ceil(costs.batch_in(interval_s / (a + max_staleness)) - 1e-9)
        largest = np.floor(costs.batch_in(interval_s / a) + 1e-9)
        batch = np.clip(np.clip(whole, smallest, np.maximum(largest, smallest)), low, high)
        broken = max(0.0, spread(costs, interval_s, batch) - max_staleness)
        value = (round(broken, 6), -float(goodput(costs, rule, batch).sum()))
        if found is None or value < found[:2]:
            found = (*value, batch)
    assert found is not None
    return found[2].astype(np.int64)


def spread(costs: Costs, interval_s: float, batch: np.ndarray) -> float:
    """The largest difference of two devices' updates per interval."""
    tau = interval_s / costs.seconds(batch)
    return float(tau.max() - tau.min())


def _wanted(costs: Costs, rule: Rule) -> np.ndarray:
    """Each device's best batch, not whole."""
    best_unbounded = np.sqrt(rule.noise * costs.fixed)
    return np.clip(best_unbounded, costs.least, costs.most)


def _nearest(wanted: np.ndarray, costs: Costs, rule: Rule) -> np.ndarray:
    """The better of the two whole batches beside it."""
    down, up = np.floor(wanted), np.ceil(wanted)
    return np.where(goodput(costs, rule, up) > goodput(costs, rule, down), up, down)
