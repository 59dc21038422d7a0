"""The most updates and work where many learners are alike: how many of each kind take each option. Exact.

For a fleet of a few kinds of devices the search of `most_work` has nothing to choose by: all learners of a
kind cost the same. But then a mixed-integer program is small, however many learners there are: per kind and
option a count, and the samples that those learners hold less than they could.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, milp

from offbeat_scheduler.allocation.most_work import Choice, Options
from offbeat_scheduler.allocation.problem import Floats, Ints

MOST_VARIABLES = 128
LEARNERS_PER_KIND = 2


def most_work(options: Options, *, most_updates: bool) -> Choice | None:
    """A choice with the largest sum of t d_k; with `most_updates`, among those with the largest sum of t.

    None where learners are of too many kinds.
    """
    count = options.lo.shape[1]
    windows = np.vstack([options.lo, options.hi])
    kinds, kind_of, sizes = np.unique(windows, axis=1, return_inverse=True, return_counts=True)
    lo, hi = np.split(kinds, 2)
    row, kind = np.nonzero(lo <= hi)
    if row.size > MOST_VARIABLES or count < LEARNERS_PER_KIND * sizes.size:
        return None
    program = _Program(options.updates[row], lo[row, kind], hi[row, kind], kind, sizes, options.total)
    least = int(np.rint(program.updates @ program.solve(program.updates)[0])) if most_updates else 0
    counts, fewer = program.solve(program.updates * program.hi, program.updates, least)
    updates, samples = np.empty(count, np.int64), np.empty(count, np.int64)
    for number in range(sizes.size):
        mine = np.flatnonzero(kind_of.reshape(-1) == number)
        of_kind = kind == number
        taken = np.repeat(np.flatnonzero(of_kind), counts[of_kind])
        updates[mine], samples[mine] = program.updates[taken], program.hi[taken]
        for option in np.flatnonzero(of_kind & (fewer > 0)).tolist():
            those = mine[taken == option]
            width = int(program.hi[option] - program.lo[option])
            samples[those] -= np.clip(int(fewer[option]) - width * np.arange(those.size), 0, width)
    return Choice(updates, samples) if int(samples.sum()) == options.total else None


class _Program:
    """Options, each of one kind of learners: (n,) but for sizes, (kinds,)."""

    def __init__(self, updates: Ints, lo: Ints, hi: Ints, kind: Ints, sizes: Ints, total: int) -> None:
        self.updates, self.lo, self.hi = updates, lo, hi
        self._sizes, self._kind = sizes, kind
        n = updates.size
        learners = sparse.csr_matrix((np.ones(n), (kind, np.arange(n))), (sizes.size, n))
        self._constraints = [
            LinearConstraint(sparse.hstack([learners, sparse.csr_matrix(learners.shape)]), sizes, sizes),
            LinearConstraint(np.concatenate([hi, -np.ones(n)]), total, total),
            LinearConstraint(
                sparse.hstack([sparse.diags((hi - lo).astype(float)), -sparse.eye(n)]), 0, np.inf
            ),
        ]

    def solve(
        self, per_learner: Ints, per_sample: Ints | None = None, least_updates: int = 0
    ) -> tuple[Ints, Ints]:
        """Counts, and the samples fewer than `hi` in sum, of each option: the largest sum of worths."""
        n = self.updates.size
        lost: Floats = np.zeros(n) if per_sample is None else per_sample.astype(float)
        enough = LinearConstraint(np.concatenate([self.updates, np.zeros(n)]), least_updates, np.inf)
        sizes = self._sizes[self._kind]
        found = milp(
            np.concatenate([-per_learner.astype(float), lost]),
            integrality=np.ones(2 * n),
            bounds=Bounds(0, np.concatenate([sizes, sizes * (self.hi - self.lo)])),
            constraints=[*self._constraints, enough],
            options={"mip_rel_gap": 0},
        )
        assert found.x is not None, found.message
        counts, fewer = np.split(np.rint(found.x).astype(np.int64), 2)
        return counts, fewer
