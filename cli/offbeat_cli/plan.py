"""`offbeat plan`: how many samples and local updates each learner gets, from a file that describes them."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from rich.console import Console

from offbeat_cli import plan_table
from offbeat_cli.plan_cycle import Cycle
from offbeat_core.errors import ExitCode, OffbeatError
from offbeat_scheduler.allocation import INTEGERS, SCHEMES, Allocation, solve
from offbeat_scheduler.allocation.instance import Instance

PLOTS = (".png", ".svg")
C = TypeVar("C", bound=str)


def plan(
    file: Path,
    *,
    scheme: str = "async",
    integer: str = "maximal",
    as_json: bool = False,
    plot: Path | None = None,
) -> int:
    """Solve the instance in `file`; returns the exit code."""
    asked = _one_of("--scheme", scheme, SCHEMES), _one_of("--integer", integer, INTEGERS)
    if plot is not None and plot.suffix.lower() not in PLOTS:
        raise OffbeatError(f"--plot: {plot} is neither {' nor '.join(PLOTS)}", f"name it {plot.stem}.png")
    instance = Instance.read(file)
    try:
        allocation = solve(instance.problem(), *asked)
    except OffbeatError as error:
        raise OffbeatError(f"{file}: {error.problem}", error.remedy) from error
    console = Console()
    if not allocation.feasible:
        if not as_json:
            raise OffbeatError(f"{file}: infeasible: {allocation.reason}", code=ExitCode.INFEASIBLE)
        console.out(to_json(allocation), highlight=False)
        return ExitCode.INFEASIBLE
    if plot is not None:
        from offbeat_cli import plan_plot  # matplotlib takes a moment to import

        plan_plot.write(cycle(instance, allocation), plot)
    if as_json:
        console.out(to_json(allocation), highlight=False)
    else:
        plan_table.show(console, cycle(instance, allocation))
        if plot is not None:
            console.print(f"plot: {plot}", highlight=False, markup=False, soft_wrap=True)
    return ExitCode.DONE


def cycle(instance: Instance, allocation: Allocation) -> Cycle:
    """How the learners spend the cycle under a feasible allocation."""
    problem, tau, samples = allocation.problem, allocation.tau, allocation.samples
    energy_share = np.full(problem.learners, np.nan)
    if (energy := problem.energy) is not None:
        used = energy.per_sample_update * (tau * samples) + energy.per_sample * samples + energy.fixed
        energy_share = np.where(np.isfinite(energy.limit), used / energy.limit, np.nan)
    return Cycle(
        title=f"{instance.name} ({allocation.scheme}, {allocation.integer}): {problem.samples} samples, "
        f"{problem.learners} learner{'s' if problem.learners > 1 else ''}, T = {problem.cycle_s:g} s",
        cycle_s=problem.cycle_s,
        names=problem.names,
        samples=samples,
        updates=tau,
        transfer_s=problem.transfer * samples + problem.fixed,
        compute_s=problem.compute * (tau * samples),
        max_staleness=allocation.max_staleness or 0,
        average_staleness=allocation.average_staleness or 0.0,
        solve_s=allocation.solve_s,
        note=allocation.reason,
        energy_share=energy_share,
    )


def to_json(allocation: Allocation) -> str:
    """One object; of an infeasible instance the lists are empty and the figures null."""
    content: dict[str, Any] = {
        "scheme": allocation.scheme,
        "integer": allocation.integer,
        "feasible": allocation.feasible,
        "reason": allocation.reason,
        "tau": allocation.tau.tolist(),
        "samples": allocation.samples.tolist(),
        "max_staleness": allocation.max_staleness,
        "average_staleness": allocation.average_staleness,
        "cycle_time_s": allocation.cycle_time_s.tolist(),
        "idle_share": allocation.idle_share,
        "updates_total": allocation.updates_total,
        "solve_s": allocation.solve_s,
    }
    return json.dumps(content, allow_nan=False)


def _one_of(option: str, value: str, known: Sequence[C]) -> C:
    for name in known:
        if name == value:
            return name
    near = difflib.get_close_matches(value, known, 1)
    raise OffbeatError(
        f"{option}: there is no '{value}'",
        f"did you mean '{near[0]}'?" if near else f"give one of {', '.join(known)}",
    )
