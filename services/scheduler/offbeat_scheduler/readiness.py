"""May a device take part in the run, and what does the run still wait for?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from offbeat_scheduler.fleet import Stage, Worker


def short(digest: str) -> str:
    return digest[:12]


def unfit(tasks: Mapping[str, str], task: str, digest: str) -> str:
    """Why a device with these tasks (name -> digest) can't take part; empty if it can.

    `digest` empty: none was fixed yet, any will do.
    """
    if task not in tasks:
        has = ", ".join(sorted(tasks)) or "none"
        return f"task '{task}' is not on this device, which has: {has}"
    if digest and tasks[task] != digest:
        return (
            f"task '{task}' differs: its digest here is {short(tasks[task])}, the run's {short(digest)}; "
            "give every device the same file"
        )
    return ""


def waiting_for_task(task: str, digest: str, devices: Iterable[tuple[str, Mapping[str, str]]]) -> str:
    """No device fits: says what each has. `devices`: (name, tasks). Empty where none attends."""
    known = list(devices)
    if not known:
        return ""
    if digest and any(task in tasks for _, tasks in known):
        have = some(f"{name} has {short(tasks[task])}" for name, tasks in known if task in tasks)
        return f"no device has task '{task}' with the digest {short(digest)} that the run names; {have}"
    have = some((f"{name} has {', '.join(sorted(tasks)) or 'none'}" for name, tasks in known), "; ")
    return f"no device has the task '{task}'; {have}"


def waiting_for_workers(need: int, workers: Iterable[Worker]) -> str:
    """'2 of 3 workers ready (...)' with what holds the others; empty if enough are ready."""
    by_stage: dict[Stage, list[Worker]] = {}
    for worker in sorted(workers, key=lambda worker: worker.name):
        by_stage.setdefault(worker.stage, []).append(worker)
    ready = len(by_stage.get(Stage.READY, ()))
    if ready >= need:
        return ""
    details = []
    preparing = [worker.name for worker in by_stage.get(Stage.PREPARING, ())]
    if preparing:
        details.append(f"preparing: {some(preparing)}")
    for stage, word in ((Stage.FAILED, "failed"), (Stage.REFUSED, "was refused")):
        if stage in by_stage:
            details.append(some((f"{w.name} {word}: {w.problem}" for w in by_stage[stage]), "; "))
    missing = need - ready - len(preparing) - len(by_stage.get(Stage.NEW, ()))
    if missing > 0:
        blocked = by_stage.get(Stage.FAILED) or by_stage.get(Stage.REFUSED)
        mend = "mend and restart what failed, or " if blocked else ""
        details.append(f"{mend}start {missing} more worker{'s' if missing > 1 else ''}")
    return f"{ready} of {need} workers ready" + (f" ({'; '.join(details)})" if details else "")


def nobody_left(workers: Iterable[Worker]) -> str:
    """All who trained are gone: says why, of those who said so."""
    failed = some((f"{w.name} failed: {w.problem}" for w in workers if w.stage is Stage.FAILED), "; ")
    return together("no worker is left", failed, "training goes on when one returns")


def some(items: Iterable[str], separator: str = ", ", most: int = 5) -> str:
    """The first few, and how many more there are: a fleet of a thousand still makes one line."""
    known = list(items)
    more = [f"and {len(known) - most} more"] if len(known) > most else []
    return separator.join([*known[:most], *more])


def together(*parts: str) -> str:
    """'a; waiting for b', without the empty ones."""
    return "; ".join(part for part in parts if part)
