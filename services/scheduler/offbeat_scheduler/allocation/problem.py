"""An allocation problem: K learners, their measured coefficients and bounds, d samples, a cycle of T seconds.

In one global cycle learner k receives the model and perhaps its d_k samples, makes tau_k local
updates (passes over its samples), and returns the model. That takes

    t_k = compute_k · tau_k · d_k + transfer_k · d_k + fixed_k      seconds

(C2, C1 and C0 of Mohammad and Sorour, arXiv 1905.01656, eq. 5) and, where energy counts,

    E_k = per_sample_update_k · tau_k · d_k + per_sample_k · d_k + fixed_k      joules

(arXiv 2012.00143). What can't be true is refused here; what is true and has no solution is for
the solvers to say.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from offbeat_core.errors import OffbeatError

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

MOST_WHOLE = 10**15
"""Samples, and samples x updates of a learner in a cycle: beyond it a float no longer counts by ones."""

IN_FILES = {
    "compute": "compute_s_per_sample_update",
    "transfer": "transfer_s_per_sample",
    "fixed": "fixed_s",
    "per_sample_update": "energy.compute_j_per_sample_update",
    "per_sample": "energy.transfer_j_per_sample",
    "energy_fixed": "energy.fixed_j",
    "limit": "energy.max_j",
}
"""By what name an error calls a coefficient: the one that an instance's file gives it."""


@dataclass(frozen=True, eq=False)
class Energy:
    """What a cycle costs each learner in joules, and what it may cost. All of shape (K,).

    Attributes:
        per_sample_update: joules per sample and local update; above 0 where there is a limit.
        per_sample: joules per sample.
        fixed: joules per cycle.
        limit: joules that the learner may spend in a cycle; inf: no limit.
    """

    per_sample_update: Floats
    per_sample: Floats
    fixed: Floats
    limit: Floats

    def __post_init__(self) -> None:
        for field in fields(self):
            object.__setattr__(self, field.name, _frozen_floats(getattr(self, field.name), field.name))


@dataclass(frozen=True, eq=False)
class Problem:
    """Coefficients of shape (K,), in seconds; bounds of shape (K,), in samples.

    Attributes:
        names: of the learners, each once.
        compute: seconds per sample and local update, above 0.
        transfer: seconds per sample: sending it, and what grows with it.
        fixed: seconds per cycle: the model, both ways; shorter than the cycle.
        min_samples, max_samples: the bounds of d_k, 1 <= min <= max.
        samples: d, the sum of all d_k.
        cycle_s: T, the length of the cycle.
        energy: None where it does not count.

    Raises:
        OffbeatError: naming the learner, the field, its value, and what to do.
    """

    names: tuple[str, ...]
    compute: Floats
    transfer: Floats
    fixed: Floats
    min_samples: Ints
    max_samples: Ints
    samples: int
    cycle_s: float
    energy: Energy | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", _names(self.names))
        for field in ("compute", "transfer", "fixed"):
            object.__setattr__(self, field, _frozen_floats(getattr(self, field), field))
        for field in ("min_samples", "max_samples"):
            object.__setattr__(self, field, _frozen_ints(getattr(self, field), field, self.names))
        object.__setattr__(self, "samples", _whole(self.samples, "samples"))
        object.__setattr__(self, "cycle_s", _positive(self.cycle_s, "cycle_s"))
        self._check_shapes()
        self._check_coefficients()
        self._check_bounds()
        if self.energy is not None:
            self._check_energy(self.energy)

    @property
    def learners(self) -> int:
        """K."""
        return len(self.names)

    def time_s(self, tau: npt.ArrayLike, samples: npt.ArrayLike) -> Floats:
        """t_k, seconds of the cycle that each learner works, for tau and samples of shape (K,)."""
        d = np.asarray(samples, float)
        return np.asarray(self.compute * (np.asarray(tau, float) * d) + self.transfer * d + self.fixed)

    def _check_shapes(self) -> None:
        owners: list[tuple[Any, Sequence[str]]] = [
            (self, ("compute", "transfer", "fixed", "min_samples", "max_samples"))
        ]
        if self.energy is not None:
            owners.append((self.energy, ("per_sample_update", "per_sample", "fixed", "limit")))
        for owner, names in owners:
            for name in names:
                if (shape := getattr(owner, name).shape) != (self.learners,):
                    raise OffbeatError(
                        f"{name} has shape {shape} for {self.learners} learners",
                        "give one value per learner",
                    )

    def _check_coefficients(self) -> None:
        self._each(self.compute, "compute", self.compute > 0, "positive")
        self._each(self.transfer, "transfer", self.transfer >= 0, "0 or more")
        self._each(self.fixed, "fixed", self.fixed >= 0, "0 or more")
        for k in np.flatnonzero(self.fixed >= self.cycle_s).tolist():
            raise OffbeatError(
                f"{self._of(k)}: {IN_FILES['fixed']} is {self.fixed[k]:g}, and the whole cycle (cycle_s) is "
                f"{self.cycle_s:g} s: the model alone travels that long",
                "give a longer cycle, or leave the learner out",
            )
        for k in np.flatnonzero(self.cycle_s / self.compute > MOST_WHOLE).tolist():
            raise OffbeatError(
                f"{self._of(k)}: {IN_FILES['compute']} is {self.compute[k]:g}: in a cycle of "
                f"{self.cycle_s:g} s that is more than {MOST_WHOLE:.0e} samples",
                "give the seconds that one sample takes in one local update",
            )

    def _check_bounds(self) -> None:
        low, high = self.min_samples, self.max_samples
        self._each(low, "min_samples", low >= 1, "1 or more")
        self._each(high, "max_samples", high <= MOST_WHOLE, f"at most {MOST_WHOLE:.0e}")
        for k in np.flatnonzero(low > high).tolist():
            raise OffbeatError(
                f"{self._of(k)}: min_samples is {low[k]} and max_samples is {high[k]}: "
                "the bounds are crossed",
                "give a min_samples that is not above max_samples",
            )

    def _check_energy(self, energy: Energy) -> None:
        limited = np.isfinite(energy.limit)
        for k in np.flatnonzero(~(limited | (energy.limit == math.inf))).tolist():
            raise OffbeatError(
                f"{self._of(k)}: {IN_FILES['limit']} is {energy.limit[k]:g}",
                "give joules, or leave the limit out",
            )
        per_update = energy.per_sample_update
        self._each(
            per_update, "per_sample_update", (per_update > 0) | (~limited & (per_update == 0)), "positive"
        )
        self._each(energy.per_sample, "per_sample", energy.per_sample >= 0, "0 or more")
        self._each(energy.fixed, "energy_fixed", energy.fixed >= 0, "0 or more")
        for k in np.flatnonzero(energy.fixed >= energy.limit).tolist():
            raise OffbeatError(
                f"{self._of(k)}: {IN_FILES['limit']} is {energy.limit[k]:g}, and "
                f"{IN_FILES['energy_fixed']} is {energy.fixed[k]:g}: the model's transfer alone spends it",
                "give a higher limit, or leave the learner out",
            )

    def _each(self, values: npt.NDArray[Any], name: str, fine: npt.NDArray[np.bool_], wanted: str) -> None:
        fine = fine & (np.isfinite(values) if values.dtype.kind == "f" else True)
        for k in np.flatnonzero(~fine).tolist():
            raise OffbeatError(
                f"{self._of(k)}: {IN_FILES.get(name, name)} is {values[k]:g}; it must be {wanted}",
                "correct the value, or leave the learner out",
            )

    def _of(self, k: int) -> str:
        return f"learner '{self.names[k]}'"


def _names(given: Sequence[str]) -> tuple[str, ...]:
    names = tuple(given)
    if not names:
        raise OffbeatError("there are no learners", "give at least one")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise OffbeatError(f"two learners are named '{twice}'", "give each its own name")
    return names


def _frozen_floats(given: npt.ArrayLike, name: str) -> Floats:
    try:
        values = np.array(given, dtype=float)
    except (TypeError, ValueError):
        raise OffbeatError(
            f"{name} holds something that is no number", "give one number per learner"
        ) from None
    values.flags.writeable = False
    return values


def _frozen_ints(given: npt.ArrayLike, name: str, names: Sequence[str]) -> Ints:
    floats = np.atleast_1d(_frozen_floats(given, name))
    whole = np.isfinite(floats) & (floats == np.floor(floats)) & (np.abs(floats) < 2 * MOST_WHOLE)
    for k in np.flatnonzero(~whole).tolist():
        whom = f"learner '{names[k]}': " if k < len(names) else ""
        raise OffbeatError(
            f"{whom}{name} is {floats[k]:g}, no whole number", "give a whole number of samples"
        )
    values = floats.astype(np.int64)
    values.flags.writeable = False
    return values


def _whole(value: Any, name: str) -> int:
    number = _positive(value, name)
    if number != math.floor(number) or number > MOST_WHOLE:
        raise OffbeatError(f"{name} is {value}", f"give a whole number of 1 to {MOST_WHOLE:.0e}")
    return int(number)


def _positive(value: Any, name: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise OffbeatError(f"{name} is {value!r}, no number", "give a number above 0") from None
    if not (math.isfinite(number) and number > 0):
        raise OffbeatError(f"{name} is {number:g}", "give a number above 0")
    return number
